"""The life of requests: every way to end, from every state; errors; what is reported. Ten blocks of four tokens."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import RequestError
from engine.outputs import Failure, FinishReason, ModelRunnerOutput, SampledToken
from engine.sequence import Request
from tests.engine.test_sampler import NO_WAY_ON
from tests.fakes import EOS_TOKEN_ID, Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def always(token_id: int) -> Callable[..., int]:
    return lambda request, context: token_id


# --- the engine's own ends -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token_id", "params", "reason", "num_tokens", "stop_token_id"),
    [
        (EOS_TOKEN_ID, {"ignore_eos": False}, "stop", 1, None),
        (EOS_TOKEN_ID, {"ignore_eos": True}, "length", 6, None),
        (EOS_TOKEN_ID, {"ignore_eos": False, "max_tokens": 1}, "stop", 1, None),
        (50, {"stop_token_ids": (50, 51)}, "stop", 1, 50),
        (50, {"stop_token_ids": (51,)}, "length", 6, None),
        (50, {"max_tokens": 1}, "length", 1, None),
        (50, {"max_tokens": 0}, "length", 0, None),
        (50, {"max_tokens": 0, "n": 2}, "length", 0, None),
    ],
)
def test_end_by_token_or_limit(
    token_id: int,
    params: dict[str, Any],
    reason: str,
    num_tokens: int,
    stop_token_id: int | None,
) -> None:
    engine = Harness(always(token_id))
    engine.add(prompt(5), **({"max_tokens": 6} | params))
    engine.run()
    for end in engine.ends.values():
        assert (end.reason, end.stop_token_id) == (reason, stop_token_id)
        assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (5, num_tokens)
    assert len(engine.ends) == params.get("n", 1)
    assert engine.num_live_blocks == 0


def test_min_tokens_keep_the_end_away() -> None:
    engine = Harness(always(EOS_TOKEN_ID))
    engine.add(prompt(5), ignore_eos=False, min_tokens=3)
    engine.run()
    assert engine.texts[0, 0] == [EOS_TOKEN_ID + 1] * 3 + [EOS_TOKEN_ID]


def test_context_ends_at_max_model_len() -> None:
    engine = Harness(max_model_len=12)
    engine.add(prompt(5), max_tokens=None)
    engine.run()
    assert engine.ends[0, 0].reason is FinishReason.LENGTH
    assert engine.ends[0, 0].usage.completion_tokens == 7


def test_blocks_are_free_in_the_step_that_ends_a_sequence() -> None:
    engine = Harness()
    engine.add(prompt(5), max_tokens=2)
    engine.step()
    assert engine.num_live_blocks == 2
    engine.step()
    assert engine.num_live_blocks == 0
    assert not engine.scheduler.has_work


def test_stop_string_found_outside_ends_a_sequence_once() -> None:
    engine = Harness()
    request = engine.add(prompt(5), n=2)
    engine.steps(2)
    seq_id = request.sequences[1].seq_id
    engine.take(engine.scheduler.finish(seq_id, FinishReason.STOP))
    assert engine.ends[0, 1].reason is FinishReason.STOP
    assert engine.ends[0, 1].usage.completion_tokens == 2
    assert engine.scheduler.finish(seq_id, FinishReason.STOP) == []
    engine.run()
    assert len(engine.texts[0, 0]) == 8


# --- abort from every state ----------------------------------------------------------------------


def waiting() -> tuple[Harness, Request]:
    engine = Harness()
    return engine, engine.add(prompt(9), n=3)


def queued_behind() -> tuple[Harness, Request]:
    engine = Harness(max_num_seqs=3)
    engine.add(prompt(4, 100))
    engine.step()
    return engine, engine.add(prompt(9), n=3)


def prefilling() -> tuple[Harness, Request]:
    engine = Harness(max_num_batched_tokens=8)
    request = engine.add(prompt(14), n=3)
    engine.step()
    return engine, request


def forked() -> tuple[Harness, Request]:
    engine = Harness()
    request = engine.add(prompt(9), n=3)
    engine.step()
    return engine, request


def decoding() -> tuple[Harness, Request]:
    engine, request = forked()
    engine.steps(3)
    return engine, request


def preempted() -> tuple[Harness, Request]:
    engine, request = decoding()
    engine.preempt()
    engine.preempt()
    return engine, request


def preempted_while_prefilling() -> tuple[Harness, Request]:
    engine, request = prefilling()
    engine.preempt()
    return engine, request


STATES = [
    waiting,
    queued_behind,
    prefilling,
    forked,
    decoding,
    preempted,
    preempted_while_prefilling,
]
State = Callable[[], tuple[Harness, Request]]


@pytest.mark.parametrize("state", STATES)
def test_abort_frees_everything_from_every_state(state: State) -> None:
    engine, request = state()
    assert engine.abort(request) == [0, 1, 2]
    assert {engine.ends[request.request_id, i].reason for i in range(3)} == {FinishReason.ABORT}
    held = {o for info in engine.scheduler.view.block_map() for o in info.owners}
    assert request.request_id not in held
    engine.scheduler.check_integrity()
    assert engine.abort(request) == []
    engine.run()
    assert engine.num_live_blocks == 0


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("state", STATES)
def test_abort_of_one_candidate_leaves_the_others(state: State, index: int) -> None:
    engine, request = state()
    assert engine.abort(request, index) == [index]
    engine.scheduler.check_integrity()
    assert engine.abort(request, index) == []
    engine.run()
    for other in {0, 1, 2} - {index}:
        assert engine.ends[request.request_id, other].reason is FinishReason.LENGTH
        assert len(engine.texts[request.request_id, other]) == 8
    assert engine.num_live_blocks == 0


@pytest.mark.parametrize("state", STATES)
def test_abort_one_by_one_ends_with_nothing(state: State) -> None:
    engine, request = state()
    for index in (0, 2, 1):
        assert engine.abort(request, index) == [index]
        engine.scheduler.check_integrity()
    engine.run()
    assert engine.num_live_blocks == 0


@pytest.mark.parametrize("index", [None, 0, 1])
@pytest.mark.parametrize("state", STATES)
def test_abort_while_a_step_is_under_way(state: State, index: int | None) -> None:
    engine, request = state()
    plan = engine.scheduler.schedule()
    ended = engine.abort(request, index)
    engine.scheduler.kv.check_integrity(engine.scheduler._roster.sequences.values())
    engine.take(engine.scheduler.update(plan, engine.runner.execute(plan)))
    engine.scheduler.check_integrity()
    engine.run()
    for other in {0, 1, 2} - set(ended):
        assert len(engine.texts[request.request_id, other]) == 8
    assert engine.num_live_blocks == 0


def test_abort_of_the_leader_and_its_heir_in_one_step() -> None:
    engine, request = prefilling()
    plan = engine.scheduler.schedule()
    engine.abort(request, 0)
    engine.abort(request, 1)
    engine.take(engine.scheduler.update(plan, engine.runner.execute(plan)))
    engine.run()
    assert len(engine.texts[0, 2]) == 8


def test_aborted_prefill_leaves_only_what_was_computed_in_the_cache() -> None:
    engine = Harness(max_num_batched_tokens=6)
    request = engine.add(prompt(13))
    engine.step()
    plan = engine.scheduler.schedule()
    engine.abort(request)
    engine.take(engine.scheduler.update(plan, engine.runner.execute(plan)))
    assert engine.scheduler.view.stats().blocks.cached == 1
    engine.add(prompt(13))
    engine.run()
    assert engine.ends[1, 0].usage.cached_tokens == 4


def test_abort_of_what_is_not_there_is_ignored() -> None:
    engine = Harness()
    request = engine.add(prompt(4), max_tokens=1)
    assert engine.scheduler.abort(99) == []
    assert engine.abort(request, 5) == []
    engine.run()
    assert engine.abort(request) == []
    assert engine.ends[0, 0].reason is FinishReason.LENGTH


def test_ending_one_request_changes_nothing_for_another_with_the_same_prompt() -> None:
    engine = Harness()
    first, second = engine.add(prompt(9), seed=1), engine.add(prompt(9), seed=1)
    engine.steps(3)
    engine.abort(first)
    engine.run()
    assert len(engine.texts[second.request_id, 0]) == 8


# --- errors --------------------------------------------------------------------------------------


def test_rejected_request_holds_nothing_and_those_behind_it_go_on() -> None:
    engine = Harness()
    with pytest.raises(RequestError, match="40 tokens"):
        engine.scheduler.add_request(Request(77, prompt(40), engine.add(prompt(3)).params, 0.0))
    engine.scheduler.check_integrity()
    assert [r.request_id for r in engine.scheduler.view.requests()] == [0]
    engine.run()
    assert len(engine.texts[0, 0]) == 8


def test_no_step_possible_is_logged_once_and_ends_the_head(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Harness()
    engine.add(prompt(30), n=2)
    engine.add(prompt(30, 50))
    engine.add(prompt(6, 100), max_tokens=4)
    for _ in range(7):
        engine.scheduler.kv.pool.allocate()
    with caplog.at_level(logging.ERROR):
        for _ in range(7):
            plan = engine.scheduler.schedule()
            output = engine.runner.execute(plan) if plan.scheduled else ModelRunnerOutput({})
            engine.take(engine.scheduler.update(plan, output))
    assert len(caplog.records) == 1
    failure = engine.ends[1, 0].error
    assert failure is not None
    assert "8 blocks are needed, 3 of 10 are available" in failure.message
    assert [engine.ends[key].reason for key in [(0, 0), (0, 1), (1, 0)]] == ["error"] * 3
    assert len(engine.texts[2, 0]) == 4


def test_failed_step_ends_what_was_in_it_and_nothing_else() -> None:
    engine = Harness(max_num_seqs=3, max_num_batched_tokens=8)
    engine.add(prompt(6), n=3)
    engine.step()
    engine.step()
    engine.add(prompt(6, 50))
    engine.scheduler.schedule()
    engine.take(engine.scheduler.fail_step("out of memory"))
    engine.scheduler.check_integrity()
    assert [engine.ends[0, i].error for i in range(3)] == [Failure("out of memory")] * 3
    assert engine.num_live_blocks == 0
    engine.run()
    assert len(engine.texts[1, 0]) == 8


def test_failed_step_ends_unborn_candidates_too() -> None:
    engine, _ = prefilling()
    engine.scheduler.schedule()
    engine.take(engine.scheduler.fail_step("broken"))
    assert [engine.ends[0, i].reason for i in range(3)] == ["error"] * 3
    assert not engine.scheduler.has_work


def test_fail_all_ends_everything_once() -> None:
    engine = Harness(max_num_seqs=3)
    engine.add(prompt(6), n=3)
    engine.step()
    engine.add(prompt(6, 50), n=2)
    engine.scheduler.schedule()
    engine.take(engine.scheduler.fail_all("dead"))
    assert {(key, end.error) for key, end in engine.ends.items()} == {
        ((request, index), Failure("dead")) for request, n in ((0, 3), (1, 2)) for index in range(n)
    }
    engine.scheduler.check_integrity()
    assert engine.num_live_blocks == 0
    assert engine.scheduler.fail_all("dead") == []


def test_misuse_is_caught() -> None:
    engine = Harness()
    request = engine.add(prompt(5))
    with pytest.raises(AssertionError, match="runs already"):
        engine.scheduler.add_request(request)
    plan = engine.scheduler.schedule()
    with pytest.raises(AssertionError, match="neither updated nor failed"):
        engine.scheduler.schedule()
    engine.scheduler.update(plan, engine.runner.execute(plan))
    with pytest.raises(AssertionError, match="not the plan"):
        engine.scheduler.update(plan, ModelRunnerOutput({}))
    with pytest.raises(AssertionError, match="no step"):
        engine.scheduler.fail_step("broken")


def test_a_sequence_for_which_nothing_can_be_drawn_ends_alone() -> None:
    engine = Harness()
    engine.add(prompt(5), n=2)
    plan = engine.scheduler.schedule()
    drawn = {**engine.runner.execute(plan).samples, 1: SampledToken(-1, error=NO_WAY_ON)}
    engine.take(engine.scheduler.update(plan, ModelRunnerOutput(drawn)))
    assert (engine.ends[0, 1].reason, engine.ends[0, 1].error) == ("error", NO_WAY_ON)
    assert engine.ends[0, 1].usage.completion_tokens == 0
    engine.run()
    assert engine.ends[0, 0].reason == "length"
    assert engine.num_live_blocks == 0


# --- what an end and a step tell -------------------------------------------------------------------------------------


def test_timings_run_from_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100, 10_000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    engine = Harness()
    engine.add(prompt(5), max_tokens=3)
    engine.run()
    timings = engine.ends[0, 0].timings
    assert (timings.queue_ms, timings.prefill_ms, timings.ttft_ms) == (1000, 1000, 2000)
    assert (timings.decode_ms, timings.tokens_per_second) == (2000, 1.0)


def test_logprobs_pass_through_as_many_as_tokens() -> None:
    engine = Harness()
    engine.add(prompt(5), logprobs=2, max_tokens=4)
    seen = []
    while engine.scheduler.has_work:
        plan = engine.scheduler.schedule()
        seen += engine.scheduler.update(plan, engine.runner.execute(plan))
    sampled = [output.sampled for output in seen if output.sampled]
    assert [len(token.top_logprobs) for token in sampled] == [2] * 4
    assert all(token.logprob and token.logprob.token_id == token.token_id for token in sampled)
