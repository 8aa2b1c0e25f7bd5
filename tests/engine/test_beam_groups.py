"""Beams in memory and in the queue: exact answers against a plain beam search through every pressure, every way to end."""

import random
from collections.abc import Iterable
from typing import Any

import pytest

from engine.beam_params import BeamParams
from engine.errors import RequestError
from engine.outputs import Failure, FinishReason
from engine.sequence import Request, Sequence
from tests.beams import expected_answers, num_blocks
from tests.fakes import EOS_TOKEN_ID, Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def search(engine: Harness, tokens: list[int], width: int, **params: Any) -> Request:
    """Add a search that returns all its beams and ends at EOS, unless said otherwise."""
    names = ("length_penalty", "early_stopping")
    beams = {name: params.pop(name) for name in names if name in params}
    params = {"ignore_eos": False, "n": width} | params
    return engine.add(tokens, beams=BeamParams(width=width, **beams), **params)


def check(engine: Harness, requests: Iterable[Request]) -> None:
    """Each request's answers are those of the plain search."""
    for request in requests:
        expected = expected_answers(request.prompt_token_ids, request.params, engine.config)
        for index, (tokens, logprob) in enumerate(expected):
            key = (request.request_id, index)
            assert engine.texts[key] == tokens, key
            assert engine.ends[key].cumulative_logprob == pytest.approx(logprob, abs=1e-9)
            assert engine.ends[key].usage.completion_tokens == len(tokens)
            is_stopped = tokens[-1:] == [EOS_TOKEN_ID] and not request.params.ignore_eos
            assert engine.ends[key].reason is FinishReason("stop" if is_stopped else "length")
    assert engine.num_live_blocks == 0


def ids(beams: Iterable[Sequence]) -> set[int]:
    return {seq.seq_id for seq in beams}


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.5, -1.0])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_answers_are_those_of_a_plain_search(
    width: int, length_penalty: float, early_stopping: Any
) -> None:
    for length, block_size in ((3, 4), (4, 4), (5, 4), (7, 1), (16, 16)):
        engine = Harness(block_size=block_size, num_blocks=400 // block_size)
        options = {"length_penalty": length_penalty, "early_stopping": early_stopping}
        request = search(engine, prompt(length), width, max_tokens=20, **options)
        engine.run()
        check(engine, [request])


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 7])
@pytest.mark.parametrize("params", [{}, {"ignore_eos": True}, {"n": 2}])
def test_limits(max_tokens: int, params: dict[str, Any]) -> None:
    engine = Harness()
    request = search(engine, prompt(5), 3, max_tokens=max_tokens, **params)
    engine.run()
    assert set(engine.ends) == {(0, index) for index in range(request.params.n)}
    check(engine, [request])


def test_stop_token_ids_end_answers_and_are_named() -> None:
    engine = Harness()
    request = search(engine, prompt(5), 3, max_tokens=20, stop_token_ids=tuple(range(0, 250, 9)))
    engine.run()
    for (_, index), end in engine.ends.items():
        tokens, logprob = expected_answers(prompt(5), request.params, engine.config)[index]
        assert (engine.texts[0, index], end.reason) == (tokens, FinishReason.STOP)
        assert end.stop_token_id == (None if tokens[-1] == EOS_TOKEN_ID else tokens[-1])
        assert end.cumulative_logprob == pytest.approx(logprob)


def test_log_probabilities_are_those_of_the_chosen_tokens() -> None:
    engine = Harness()
    search(engine, prompt(5), 3, max_tokens=6, logprobs=2, n=1)
    outputs = []
    engine.take = outputs.extend  # type: ignore[method-assign]
    engine.run()
    sampled = [output.sampled for output in outputs if output.sampled]
    assert len(sampled) > 1
    logprobs = [token.logprob.logprob for token in sampled]
    assert sum(logprobs) == pytest.approx(outputs[-1].end.cumulative_logprob)
    assert all(token.logprob.token_id == token.token_id for token in sampled)
    assert {len(token.top_logprobs) for token in sampled} == {2}


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
@pytest.mark.parametrize("distance", [-1, 0, 1])
def test_each_block_is_held_once_and_dead_beams_hold_none(block_size: int, distance: int) -> None:
    length = max(1, block_size + distance)
    engine = Harness(block_size=block_size, num_blocks=200)
    request = search(engine, prompt(length), 4, max_tokens=24, ignore_eos=True)
    while engine.scheduler.has_work:
        engine.step()
        if engine.scheduler.has_work:
            contexts = [seq.token_ids[:-1] for seq in request.sequences]
            assert engine.num_live_blocks == num_blocks(contexts, block_size)
    check(engine, [request])
    assert engine.scheduler.view.stats().counters.forks > 3


@pytest.mark.parametrize(("length", "num_copies"), [(3, 2), (4, 0), (5, 2)])
def test_the_first_to_write_a_shared_tail_copies_it(length: int, num_copies: int) -> None:
    engine = Harness()
    request = search(engine, prompt(length), 3, ignore_eos=True)
    engine.step()
    tail = request.sequences[0].block_table[-1]
    assert [seq.block_table[-1] for seq in request.sequences] == [tail] * 3
    plan = engine.step()
    assert [copy.src for copy in plan.block_copies] == [tail] * num_copies
    assert len({copy.dst for copy in plan.block_copies}) == num_copies


def test_a_search_that_outgrows_the_pool_ends_with_its_best() -> None:
    for block_size, num_pool_blocks in ((1, 14), (2, 9), (4, 6), (16, 4)):
        engine = Harness(block_size=block_size, num_blocks=num_pool_blocks)
        request = search(engine, prompt(6), 3, max_tokens=60, ignore_eos=True)
        other = engine.add(prompt(5, 9))
        engine.run()
        check(engine, [request])
        lengths = {len(engine.texts[request.request_id, index]) for index in range(3)}
        assert max(lengths) < 60
        assert len(engine.texts[other.request_id, 0]) == 8


@pytest.mark.parametrize(("num_pool_blocks", "width", "fits"), [(4, 3, True), (4, 4, False)])
def test_beams_that_can_never_fit_are_refused(num_pool_blocks: int, width: int, fits: bool) -> None:
    engine = Harness(num_blocks=num_pool_blocks)
    if fits:
        check_after_run(engine, search(engine, prompt(7), width))
        return
    with pytest.raises(RequestError, match=r"need 5 KV blocks, the pool has 4") as caught:
        search(engine, prompt(7), width)
    assert caught.value.param == "best_of"
    assert not engine.scheduler.has_work


def check_after_run(engine: Harness, *requests: Request) -> None:
    engine.run()
    check(engine, requests)


def test_more_beams_than_slots_are_refused() -> None:
    engine = Harness(max_num_seqs=3)
    with pytest.raises(RequestError, match="best_of is 4; 3 beams") as caught:
        search(engine, prompt(7), 4, n=1)
    assert caught.value.param == "best_of"


# --- the queue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(24))
def test_answers_stay_the_same_through_every_pressure(seed: int) -> None:
    draw = random.Random(seed)
    block_size = draw.choice([1, 2, 4, 16])
    engine = Harness(
        block_size=block_size,
        num_blocks=draw.randint(48 // block_size + 5, 160 // block_size + 8),
        max_num_batched_tokens=draw.choice([8, 16, 64]),
        enable_prefix_caching=draw.random() < 0.5,
    )
    requests = [
        search(
            engine,
            prompt(draw.randint(1, 30)),
            width,
            n=draw.randint(1, width),
            max_tokens=draw.randint(1, 30),
            ignore_eos=draw.random() < 0.6,
            priority=draw.choice([0, 0, 1]),
            length_penalty=draw.choice([0.0, 1.0, 1.5]),
            early_stopping=draw.choice([True, False, "never"]),
        )
        for width in (draw.randint(1, 5) for _ in range(4))
    ]
    engine.add(prompt(draw.randint(1, 20)), n=2, max_tokens=20)
    while engine.scheduler.has_work:
        plan = engine.step()
        sampled = {entry.seq_id for entry in plan.scheduled if entry.samples}
        for request in requests:
            drawn = sampled & ids(request.sequences)
            assert drawn in (set(), {request.sequences[0].seq_id}, ids(request.sequences))
        if engine.scheduler._roster.running and draw.random() < 0.2:
            engine.preempt(draw.randrange(len(engine.scheduler._roster.running)))
            engine.scheduler.check_integrity()
    check(engine, requests)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("num_steps", [5, 8, 11, 14])
def test_preempted_beams_compute_what_they_share_once(block_size: int, num_steps: int) -> None:
    engine = Harness(block_size=block_size, num_blocks=120, enable_prefix_caching=False)
    request = search(engine, prompt(9), 7, max_tokens=30, ignore_eos=True)
    engine.steps(num_steps)
    num_blocks_before = engine.num_live_blocks
    contexts = [tuple(seq.token_ids) for seq in request.sequences]
    positions = {context[:end] for context in contexts for end in range(1, len(context) + 1)}
    engine.preempt()
    assert engine.num_live_blocks == 0
    assert [seq.status.value for seq in request.sequences].count("preempted") == 1
    num_computed, plan = 0, None
    while plan is None or not any(entry.samples for entry in plan.scheduled):
        assert engine.num_live_blocks <= num_blocks_before
        plan = engine.step()
        num_computed += plan.num_scheduled_tokens
    assert num_computed == len(positions)
    assert ids(request.sequences) == {entry.seq_id for entry in plan.scheduled if entry.samples}
    assert engine.scheduler.view.stats().counters.preemptions == 1
    engine.run()
    check(engine, [request])


def test_beams_come_back_from_the_prefix_cache_up_to_where_they_part() -> None:
    engine = Harness(block_size=2, num_blocks=120)
    request = search(engine, prompt(9), 3, max_tokens=30, ignore_eos=True)
    engine.steps(8)
    engine.preempt()
    (leader,) = engine.scheduler._roster.waiting
    fork_position = min(seq.fork_position for seq in leader.followers)
    first = engine.step().scheduled[0]
    assert first.start_position == (fork_position - 1) // 2 * 2
    assert first.start_position + len(first.token_ids) == fork_position
    engine.run()
    check(engine, [request])


def test_all_beams_of_the_victim_give_way_at_once() -> None:
    engine = Harness(num_blocks=9, enable_prefix_caching=False)
    first = engine.add(prompt(7), max_tokens=20)
    request = search(engine, prompt(7, 50), 3, max_tokens=9, ignore_eos=True)
    while not engine.scheduler.view.stats().counters.preemptions:
        engine.step()
    assert {seq.num_computed_tokens for seq in request.sequences} == {0}
    assert engine.scheduler.view.stats().num_running == 1
    engine.run()
    check(engine, [request])
    assert len(engine.texts[first.request_id, 0]) == 20


def test_the_first_in_rank_is_spared_with_all_its_beams() -> None:
    engine = Harness(num_blocks=12, enable_prefix_caching=False)
    request = search(engine, prompt(3), 3, max_tokens=9, ignore_eos=True)
    long = engine.add(prompt(30, 50), max_tokens=8)
    while not engine.scheduler.view.stats().counters.preemptions:
        engine.step()
    assert [seq.status.value for seq in request.sequences] == ["running"] * 3
    assert long.sequences[0].status.value == "preempted"
    engine.run()
    check(engine, [request])


def test_beams_take_the_budget_together_or_not_at_all() -> None:
    engine = Harness(num_blocks=40, max_num_batched_tokens=4)
    first = engine.add(prompt(4), n=2, max_tokens=12)
    request = search(engine, prompt(4, 50), 3, max_tokens=4, ignore_eos=True)
    while not request.sequences[1].block_table:
        engine.step()
    plan = engine.step()
    assert {entry.seq_id for entry in plan.scheduled} == ids(first.sequences)
    while not engine.ends:
        engine.step()
    plan = engine.step()
    assert {entry.seq_id for entry in plan.scheduled} == ids(request.sequences)
    engine.run()
    check(engine, [request])


def test_a_long_search_is_no_standstill() -> None:
    engine = Harness(max_model_len=200, num_blocks=200)
    assert engine.scheduler._watchdog.max_idle_steps < 130
    request = search(engine, prompt(3), 2, max_tokens=150, ignore_eos=True)
    engine.run()
    check(engine, [request])


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [0, 1, 2, 6])
@pytest.mark.parametrize("preempted", [False, True])
def test_abort_ends_every_candidate_and_frees_every_beam(num_steps: int, preempted: bool) -> None:
    engine = Harness(max_num_batched_tokens=8)
    request = search(engine, prompt(12), 4, n=2, max_tokens=9, ignore_eos=True)
    engine.steps(num_steps)
    if preempted and num_steps:
        engine.preempt()
    assert engine.abort(request) == [0, 1]
    assert engine.num_live_blocks == 0
    assert not engine.scheduler.has_work
    assert engine.texts == {}
    assert {end.reason for end in engine.ends.values()} == {FinishReason.ABORT}
    assert engine.abort(request) == []


def test_one_aborted_candidate_leaves_the_others_their_answers() -> None:
    engine = Harness(max_num_batched_tokens=8)
    request = search(engine, prompt(12), 4, n=3, max_tokens=9)
    engine.step()
    assert engine.abort(request, 0) == [0]
    assert engine.abort(request, 3) == []
    engine.run()
    assert engine.progress == [(0, 8), (0, 12)]
    expected = expected_answers(prompt(12), request.params, engine.config)
    assert [engine.texts[0, i] for i in (1, 2)] == [tokens for tokens, _ in expected[1:]]
    assert (0, 0) not in engine.texts


def test_the_last_wanted_candidate_ends_the_search() -> None:
    engine = Harness()
    request = search(engine, prompt(6), 4, n=2)
    engine.steps(3)
    assert engine.abort(request, 1) == [1]
    assert engine.num_live_blocks > 0
    assert engine.abort(request, 0) == [0]
    assert engine.num_live_blocks == 0


def test_abort_under_way_is_not_undone_by_the_update() -> None:
    engine = Harness()
    request = search(engine, prompt(6), 3)
    engine.steps(3)
    plan = engine.scheduler.schedule()
    engine.abort(request)
    engine.take(engine.scheduler.update(plan, engine.runner.execute(plan)))
    engine.scheduler.check_integrity()
    assert not engine.scheduler.has_work


@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_a_failed_step_ends_the_whole_search(num_steps: int) -> None:
    engine = Harness()
    request = search(engine, prompt(6), 3, n=2)
    engine.steps(num_steps)
    engine.scheduler.schedule()
    engine.take(engine.scheduler.fail_step("broken"))
    assert [engine.ends[0, i].error for i in range(request.params.n)] == [Failure("broken")] * 2
    assert engine.num_live_blocks == 0
    engine.scheduler.check_integrity()


def test_an_end_from_outside_ends_the_whole_search() -> None:
    engine = Harness()
    request = search(engine, prompt(6), 3, n=2)
    engine.steps(3)
    engine.take(engine.scheduler.finish(request.sequences[2].seq_id, FinishReason.STOP))
    assert {key: end.reason for key, end in engine.ends.items()} == {
        (0, 0): FinishReason.STOP,
        (0, 1): FinishReason.STOP,
    }
    assert engine.num_live_blocks == 0


def test_blocks_and_tokens_of_a_search_are_counted_once() -> None:
    engine = Harness()
    request = search(engine, prompt(9), 3, n=2, max_tokens=5, ignore_eos=True)
    engine.steps(4)
    num_held = engine.num_live_blocks
    assert engine.scheduler.view.requests()[0].num_candidates == 3
    engine.run()
    first, second = (engine.ends[0, i] for i in (0, 1))
    assert first.kv.blocks_private + first.kv.blocks_shared == first.kv.blocks_released
    assert first.kv.blocks_released >= num_held
    assert second.kv.blocks_released == 0
    assert engine.scheduler.view.stats().counters.generated_tokens == 10
    assert engine.scheduler.view.stats().counters.prompt_tokens == 9
    check(engine, [request])
