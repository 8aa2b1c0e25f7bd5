"""Who may start: passing by what is too large, how often, and in which order. Ten blocks of four tokens unless said."""

import pytest

from engine.intake import MAX_LOOKAHEAD, MAX_OVERTAKES
from engine.outputs import BlockCopy, FinishReason
from tests.fakes import Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def started(engine: Harness) -> list[int]:
    """The requests that run, in order of rank."""
    return [seq.request.request_id for seq in engine.scheduler._roster.running]


def reasons(engine: Harness) -> list[str | None]:
    return [request.waiting_reason for request in engine.scheduler.view.requests()]


# --- passing by ----------------------------------------------------------------------------------


def test_small_one_behind_one_that_is_too_large_starts_at_once() -> None:
    engine = Harness()
    engine.add(prompt(24))
    engine.add(prompt(16, 50))
    engine.add(prompt(2, 90))
    engine.step()
    assert started(engine) == [0, 2]
    assert reasons(engine) == [None, "capacity", None]
    stats = engine.scheduler.view.stats()
    assert (stats.num_waiting, stats.waiting_capacity, stats.waiting_budget) == (1, 1, 0)
    engine.run()


def test_group_that_lacks_slots_is_passed_by_a_single_one() -> None:
    engine = Harness(max_num_seqs=4, num_blocks=60)
    engine.add(prompt(4), n=3)
    engine.add(prompt(4, 50), n=2)
    engine.add(prompt(4, 90))
    engine.step()
    assert started(engine) == [0, 0, 0, 2]
    engine.run()


def test_large_one_is_overtaken_so_often_and_no_more() -> None:
    engine = Harness(max_num_seqs=4, num_blocks=20)
    engine.add(prompt(7), max_tokens=30)
    engine.step()
    large = engine.add(prompt(75, 50))
    small = [engine.add(prompt(2, 90), max_tokens=2) for _ in range(MAX_OVERTAKES + 8)]
    engine.run()
    started_at = [request.first_scheduled_time or 0.0 for request in [large, *small]]
    assert sum(time < started_at[0] for time in started_at) == MAX_OVERTAKES
    assert started_at[1:] == sorted(started_at[1:])
    assert large.num_overtakes == MAX_OVERTAKES
    assert {end.reason for end in engine.ends.values()} == {FinishReason.LENGTH}


def test_bound_holds_also_for_those_that_would_start_in_one_step() -> None:
    engine = Harness(max_num_seqs=30, num_blocks=30)
    engine.add(prompt(20), max_tokens=30)
    engine.step()
    large = engine.add(prompt(100, 50))
    for _ in range(MAX_OVERTAKES + 2):
        engine.add(prompt(2, 90), max_tokens=4)
    engine.step()
    assert len(started(engine)) == 1 + MAX_OVERTAKES == 1 + large.num_overtakes
    assert reasons(engine)[-2:] == ["capacity", "capacity"]
    assert engine.scheduler.view.stats().waiting_capacity == 3
    engine.run()


def test_heir_of_one_that_was_overtaken_inherits_the_count() -> None:
    engine = Harness()
    engine.add(prompt(7), max_tokens=30)
    engine.step()
    large = engine.add(prompt(34, 50), n=2)
    for _ in range(2):
        engine.add(prompt(2, 90), max_tokens=2)
    engine.step()
    engine.abort(large, 0)
    assert large.num_overtakes == 2
    engine.run()


def test_those_that_start_although_nobody_is_passed_by_are_not_counted() -> None:
    engine = Harness()
    requests = [engine.add(prompt(2, 50 * i)) for i in range(3)]
    engine.run()
    assert [request.num_overtakes for request in requests] == [0, 0, 0]


def test_preempted_sequence_is_not_passed_by() -> None:
    engine = Harness(num_blocks=6)
    engine.add(prompt(9), max_tokens=12)
    engine.add(prompt(9, 50), max_tokens=12)
    engine.step()
    engine.preempt()
    stolen = engine.scheduler.kv.pool.allocate()
    engine.add(prompt(2, 90))
    engine.scheduler.kv.pool.fill(stolen, 0)
    assert [len(plan.scheduled) for plan in [engine.scheduler.schedule()]] == [1]
    assert started(engine) == [0]
    assert reasons(engine) == [None, "capacity", "capacity"]


def test_only_so_many_that_do_not_fit_are_looked_at() -> None:
    engine = Harness(max_num_seqs=16)
    engine.add(prompt(20), max_tokens=2)
    for i in range(MAX_LOOKAHEAD):
        engine.add(prompt(30, 20 * i))
    engine.add(prompt(2, 240))
    engine.step()
    assert started(engine) == [0]
    assert engine.scheduler.view.stats().waiting_capacity == MAX_LOOKAHEAD + 1
    engine.run()


def test_hits_are_not_looked_up_when_nothing_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Harness(max_num_seqs=1)
    engine.add(prompt(4))
    engine.step()
    engine.add(prompt(4))
    monkeypatch.setattr(engine.scheduler.kv, "lookup", None)
    engine.step()
    assert engine.scheduler.view.stats().waiting_capacity == 1


def test_a_start_leaves_a_block_for_each_that_decodes() -> None:
    engine = Harness(num_blocks=6)
    engine.add(prompt(4), max_tokens=12)
    engine.add(prompt(4, 50), max_tokens=12)
    engine.step()
    engine.add(prompt(3, 100), max_tokens=1)
    assert len(engine.step().scheduled) == 2
    assert reasons(engine) == [None, None, "capacity"]
    engine = Harness(num_blocks=7)
    engine.add(prompt(4), max_tokens=12)
    engine.add(prompt(4, 50), max_tokens=12)
    engine.step()
    engine.add(prompt(3, 100), max_tokens=1)
    assert len(engine.step().scheduled) == 3


# --- a block to spare for a copy's source --------------------------------------------------------


@pytest.mark.parametrize(("num_blocks", "num_cached"), [(4, 4), (5, 6)])
def test_source_that_nobody_holds_is_copied_only_if_a_block_is_to_spare(
    num_blocks: int, num_cached: int
) -> None:
    engine = Harness(num_blocks=num_blocks)
    engine.add(prompt(8), max_tokens=1)
    engine.run()
    engine.add([*prompt(6), *prompt(7, 100)], max_tokens=1)
    engine.run()
    assert engine.ends[1, 0].usage.cached_tokens == num_cached


def test_source_that_somebody_holds_is_copied_in_a_pool_that_is_exactly_full() -> None:
    engine = Harness(num_blocks=6)
    engine.add(prompt(8), max_tokens=5)
    engine.step()
    engine.add([*prompt(6), *prompt(2, 100)], max_tokens=1)
    assert engine.step().block_copies == (BlockCopy(1, 3),)
    engine.run()


def test_one_block_to_spare_serves_all_copies_of_the_same_source() -> None:
    engine = Harness(num_blocks=7)
    engine.add(prompt(8), max_tokens=1)
    engine.run()
    for start in (100, 150):
        engine.add([*prompt(6), *prompt(5, start)], max_tokens=1)
    plan = engine.step()
    assert plan.block_copies == (BlockCopy(1, 2), BlockCopy(1, 4))
    assert [entry.start_position for entry in plan.scheduled] == [6, 6]
    engine.run()


def test_one_block_to_spare_serves_one_of_two_sources() -> None:
    engine = Harness(num_blocks=7)
    for start in (0, 50):
        engine.add(prompt(4, start), max_tokens=1)
        engine.run()
    for start in (0, 50):
        engine.add([*prompt(2, start), *prompt(9, start + 100)], max_tokens=1)
    plan = engine.step()
    assert plan.block_copies == (BlockCopy(0, 2),)
    assert [entry.start_position for entry in plan.scheduled] == [2, 0]
    engine.run()


# --- priority ------------------------------------------------------------------------------------


def test_lower_priority_value_starts_first_and_equals_by_arrival() -> None:
    engine = Harness(max_num_seqs=1)
    for priority in (0, 5, -3, 5, -3):
        engine.add(prompt(2, 30 * priority + 90), priority=priority, max_tokens=1)
    order = []
    while engine.scheduler.has_work:
        plan = engine.step()
        order += [entry.seq_id for entry in plan.scheduled]
    assert order == [2, 4, 0, 1, 3]


def test_higher_priority_that_comes_later_is_no_overtaking() -> None:
    engine = Harness()
    engine.add(prompt(20), max_tokens=12)
    engine.step()
    large = engine.add(prompt(30, 50))
    engine.add(prompt(2, 90), priority=-1)
    engine.step()
    assert started(engine) == [2, 0]
    assert large.num_overtakes == 0
    engine.run()


def test_higher_priority_prompt_gets_the_budget_before_an_older_one() -> None:
    engine = Harness(max_num_batched_tokens=8, num_blocks=60)
    engine.add(prompt(40))
    engine.step()
    engine.add(prompt(60, 100), priority=-1)
    plan = engine.step()
    assert [(e.seq_id, len(e.token_ids)) for e in plan.scheduled] == [(1, 4), (0, 4)]


# --- candidates ----------------------------------------------------------------------------------


def preempt_group(engine: Harness) -> None:
    engine.add(prompt(16), n=3, seed=1, max_tokens=9)
    engine.add(prompt(4, 100), max_tokens=20)
    while len(engine.scheduler._roster.running) < 4:
        engine.step()
    for _ in range(3):
        engine.preempt(0)
    filler = [engine.scheduler.kv.pool.allocate() for _ in range(len(engine.free_block_ids))]
    engine.scheduler.kv.pool.free(filler)


def test_preempted_candidates_compute_their_prompt_once() -> None:
    engine = Harness(max_num_batched_tokens=8, num_blocks=20)
    preempt_group(engine)
    plans = [[(e.seq_id, e.start_position) for e in engine.step().scheduled] for _ in range(4)]
    plans = [[start for start in plan if start[0] != 3] for plan in plans]
    assert plans == [[(0, 0)], [(0, 7)], [(0, 14)], [(0, 17), (1, 16), (2, 16)]]
    tables = [seq.block_table for seq in engine.requests[0].sequences]
    assert tables[0][:4] == tables[1][:4] == tables[2][:4]
    engine.run()


def test_without_a_prefix_cache_preempted_candidates_wait_for_nobody() -> None:
    engine = Harness(max_num_batched_tokens=64, num_blocks=30, enable_prefix_caching=False)
    preempt_group(engine)
    assert [e.start_position for e in engine.step().scheduled] == [4, 0, 0, 0]
    engine.run()
