"""Log-probabilities of prompts among other requests, with a fake model that thinks something of every token."""

import asyncio

import pytest

from engine.beam_params import BeamParams
from engine.outputs import (
    FinishReason,
    PrefillProgress,
    PromptLogprobs,
    SchedulerOutput,
    ScoredToken,
    ScoreRequest,
    TextDelta,
    TokenLogprob,
)
from engine.prompt_scores import MAX_JUDGED_BESIDE_OTHERS, PromptScores, limit_judged
from engine.sampling_params import SamplingParams
from tests.engine.rig import assert_aborted, read, running
from tests.fakes import Harness, expected_scores


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def score(token_id: int) -> ScoredToken:
    return ScoredToken(TokenLogprob(token_id, -1.0, 1), ())


# --- the collection ------------------------------------------------------------------------------


def test_a_step_judges_what_follows_the_tokens_it_computes() -> None:
    scores = PromptScores([10, 11, 12, 13], 2)
    assert scores.request(0, 2) == ScoreRequest([11, 12], 2)
    assert scores.request(2, 2) == ScoreRequest([13], 2)
    assert scores.request(3, 1) is None


def test_what_is_computed_again_is_judged_again() -> None:
    scores = PromptScores([10, 11, 12, 13], 0)
    assert scores.add(0, [score(1), score(2)])
    assert not scores.is_complete
    assert scores.tell() == (score(1), score(2))
    assert scores.tell() is None
    assert not scores.add(0, [score(11)]), "no further than before"
    assert scores.tell() is None
    assert scores.add(1, [score(12), score(13)])
    assert scores.is_complete
    assert scores.request(0, 4) is None
    assert scores.tell() == (score(13),), "what has been told stays"
    assert scores.tell() is None


def test_a_prompt_of_one_token_has_nothing_to_judge() -> None:
    scores = PromptScores([10], 5)
    assert scores.request(0, 1) is None
    assert scores.tell() == ()
    assert scores.tell() is None


def test_a_gap_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="left out"):
        PromptScores([10, 11, 12], 0).add(1, [score(12)])


# --- in the scheduler ----------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 64])
def test_chunks_and_neighbours_change_nothing(budget: int) -> None:
    engine = Harness(max_num_batched_tokens=budget, num_blocks=60)
    engine.add(prompt(9), seed=1)
    judged = [engine.add(prompt(n, 50), seed=n, prompt_logprobs=2) for n in (1, 4, 11, 23)]
    engine.run()
    assert {r.request_id for r in judged} == set(engine.scores)
    for request in judged:
        ids = request.prompt_token_ids
        assert engine.scores[request.request_id] == expected_scores(ids, 2)
        assert len(engine.texts[request.request_id, 0]) == 8
    assert engine.num_live_blocks == 0


def test_the_cache_is_filled_but_not_used_until_all_are_judged() -> None:
    engine = Harness()
    engine.add(prompt(9), max_tokens=1)
    engine.run()
    engine.add(prompt(13), max_tokens=4, prompt_logprobs=0)
    plan = engine.step()
    assert [(run.start_position, len(run.token_ids)) for run in plan.scheduled] == [(0, 13)]
    engine.preempt()
    plan = engine.step()
    assert [(run.start_position, run.score) for run in plan.scheduled] == [(12, None)]
    engine.run()
    assert engine.ends[1, 0].usage.cached_tokens == 0
    engine.add(prompt(14), max_tokens=1)
    engine.run()
    assert engine.ends[2, 0].usage.cached_tokens == 13
    counters = engine.scheduler.view.stats().counters
    assert (counters.prefix_queries, counters.prefix_hits) == (9 + 14, 13)


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_what_was_pushed_out_is_judged_anew_and_told_once(num_steps: int) -> None:
    engine = Harness(max_num_batched_tokens=4)
    engine.add(prompt(14), prompt_logprobs=1)
    for _ in range(num_steps):
        engine.steps(num_steps)
        engine.preempt()
    engine.run()
    assert engine.scores == {0: expected_scores(prompt(14), 1)}
    assert len(engine.texts[0, 0]) == 8


def test_what_was_computed_for_it_is_lost_although_others_hold_it() -> None:
    engine = Harness(max_num_batched_tokens=9, num_blocks=20)
    judged = engine.add(prompt(18), prompt_logprobs=0)
    engine.step()
    engine.add(prompt(9), max_tokens=2)
    engine.scheduler.schedule()
    kv = engine.scheduler.kv
    assert kv.count_shared(judged.sequences[0]) == 2
    assert kv.num_lost_tokens(judged.sequences[0]) == 9


def test_candidates_share_one_judgement_and_their_leader_may_go() -> None:
    engine = Harness(max_num_batched_tokens=6, num_blocks=20)
    request = engine.add(prompt(16), n=3, seed=1, prompt_logprobs=1)
    engine.step()
    engine.abort(request, 0)
    engine.run()
    assert engine.scores == {0: expected_scores(prompt(16), 1)}
    assert [engine.ends[0, i].reason for i in range(3)] == [
        FinishReason.ABORT,
        FinishReason.LENGTH,
        FinishReason.LENGTH,
    ]


def test_a_leader_that_leaves_during_a_step_hands_its_scores_on() -> None:
    engine = Harness(max_num_batched_tokens=6, num_blocks=20)
    request = engine.add(prompt(16), n=2, seed=1, prompt_logprobs=1)
    plan = engine.scheduler.schedule()
    output = engine.runner.execute(plan)
    engine.abort(request, 0)
    engine.take(engine.scheduler.update(plan, output))
    engine.run()
    assert engine.scores == {0: expected_scores(prompt(16), 1)}


def test_a_prompt_is_scored_without_drawing() -> None:
    engine = Harness()
    request = engine.add(prompt(10), max_tokens=0, prompt_logprobs=3)
    engine.run()
    assert engine.scores == {0: expected_scores(request.prompt_token_ids, 3)}
    assert engine.texts[0, 0] == []
    assert engine.ends[0, 0].usage.completion_tokens == 0


def test_a_search_tells_a_candidate_that_has_not_ended() -> None:
    engine = Harness(max_num_batched_tokens=6, num_blocks=20)
    beams = BeamParams(width=2)
    request = engine.add(prompt(16), n=2, beams=beams, max_tokens=3, prompt_logprobs=1)
    engine.step()
    engine.abort(request, 0)
    engine.run()
    assert engine.scores == {0: expected_scores(prompt(16), 1)}


# --- in the whole engine -------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [4, 64])
async def test_a_stream_tells_them_step_by_step_before_its_text(budget: int) -> None:
    async with running(max_num_batched_tokens=budget) as rig:
        params = SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=1, n=2)
        events = await read(rig.submit(prompt(10), params))
    told = [event for event in events if isinstance(event, PromptLogprobs)]
    assert len(told) == (3 if budget == 4 else 1)
    kinds = [type(event) for event in events if not isinstance(event, PrefillProgress)]
    assert kinds[0] is PromptLogprobs
    assert kinds.index(TextDelta) == len(told)
    others = [token for event in told for token in event.others]
    shown = [(token.token_id, token.logprob) for token in others]
    expected = expected_scores(prompt(10), 1)
    assert shown == [(entry.logprob.token_id, entry.logprob.logprob) for entry in expected]
    assert [event.first for event in told] == [chr(0x103), None, None][: len(told)]
    best = [(token.top[0].token_id, token.top[0].bytes) for token in others]
    ids = [entry.top_logprobs[0].token_id for entry in expected]
    assert best == [(token_id, chr(0x100 + token_id).encode()) for token_id in ids]


async def test_an_abort_half_way_ends_what_is_told() -> None:
    async with running(num_blocks=30, max_num_batched_tokens=8) as rig:
        rig.runner.hold()
        stream = rig.submit(prompt(60), SamplingParams(max_tokens=0, prompt_logprobs=1))
        await rig.runner.held()
        await rig.runner.advance()
        stream.abort()
        rig.runner.release()
        events = await asyncio.wait_for(read(stream), 10)
        assert_aborted(events)
        told = [event for event in events if isinstance(event, PromptLogprobs)]
        assert [len(event.others) for event in told] == [8, 8]
        assert rig.live_blocks() == 0


# --- beside others -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "is_judged", "has_others", "expected"),
    [
        ([500, 40], [True, True], False, [500, 40]),
        ([500, 40], [True, True], True, [MAX_JUDGED_BESIDE_OTHERS, 0]),
        ([10, 500], [True, True], True, [10, MAX_JUDGED_BESIDE_OTHERS - 10]),
        ([500, 400], [True, False], False, [MAX_JUDGED_BESIDE_OTHERS, 400]),
        ([400], [False], True, [400]),
    ],
)
def test_few_tokens_are_judged_beside_others(
    wants: list[int], is_judged: list[bool], has_others: bool, expected: list[int]
) -> None:
    assert limit_judged(wants, is_judged, has_others) == expected


def test_no_step_of_a_neighbour_judges_many_tokens() -> None:
    engine = Harness(max_num_batched_tokens=128, num_blocks=200)
    judged = [engine.add(prompt(length), prompt_logprobs=0) for length in (300, 100)]
    first = engine.step()
    assert num_judged(first) == 128, "alone they have the step"
    engine.add(prompt(120, 70), max_tokens=100)
    while any(len(engine.scores[r.request_id]) < len(r.prompt_token_ids) - 1 for r in judged):
        plan = engine.step()
        assert 0 < num_judged(plan) <= MAX_JUDGED_BESIDE_OTHERS
        assert any(run.score is None for run in plan.scheduled), "the neighbour is in every step"
    for request in judged:
        assert engine.scores[request.request_id] == expected_scores(request.prompt_token_ids, 0)


def num_judged(plan: SchedulerOutput) -> int:
    return sum(len(run.score.token_ids) for run in plan.scheduled if run.score is not None)
