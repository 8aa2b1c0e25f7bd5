"""The planner on a fake model: budget, admission, prefix hits."""

import pytest

from engine.intake import MAX_LOOKAHEAD
from engine.outputs import BlockCopy
from tests.engine.plans import prompt, shape
from tests.fakes import Harness


def test_long_prompt_is_computed_in_chunks_under_the_budget() -> None:
    engine = Harness(max_num_batched_tokens=8)
    engine.add(prompt(19), max_tokens=2)
    plans = [shape(engine.step()) for _ in range(4)]
    assert plans == [[(0, 0, 8, 0)], [(0, 8, 8, 0)], [(0, 16, 3, 1)], [(0, 19, 1, 1)]]
    assert engine.progress == [(0, 8), (0, 16), (0, 19)]
    assert not engine.scheduler.has_work


def test_decodes_come_first_and_prefills_share_what_is_left() -> None:
    engine = Harness(max_num_batched_tokens=8, num_blocks=20)
    engine.add(prompt(4))
    engine.step()
    engine.add(prompt(20, 50))
    assert shape(engine.step()) == [(0, 4, 1, 1), (1, 0, 7, 0)]
    assert shape(engine.step()) == [(0, 5, 1, 1), (1, 7, 7, 0)]


def test_decodes_beyond_the_budget_wait_a_step_oldest_first() -> None:
    engine = Harness(max_num_batched_tokens=2)
    engine.add(prompt(2), n=3, max_tokens=3)
    plans = [[seq_id for seq_id, *_ in shape(engine.step())] for _ in range(5)]
    assert plans == [[0], [0, 1], [0, 1], [2], [2]]


def test_sequence_joins_at_the_next_step_and_leaves_in_the_step_it_ends() -> None:
    engine = Harness()
    engine.add(prompt(4), max_tokens=3)
    engine.step()
    engine.add(prompt(5, 50), max_tokens=1)
    assert shape(engine.step()) == [(0, 4, 1, 1), (1, 0, 5, 1)]
    assert shape(engine.step()) == [(0, 5, 1, 1)]
    assert engine.num_live_blocks == 0


def test_short_prompt_behind_long_ones_starts_at_once() -> None:
    engine = Harness(max_num_batched_tokens=8, num_blocks=60)
    engine.add(prompt(100))
    engine.step()
    engine.add(prompt(90, 100))
    engine.add(prompt(3, 200))
    assert shape(engine.step()) == [(0, 8, 4, 0), (1, 0, 1, 0), (2, 0, 3, 1)]


def test_oldest_prompt_keeps_half_of_the_budget_under_a_stream_of_short_ones() -> None:
    engine = Harness(max_num_batched_tokens=8, num_blocks=100)
    engine.add(prompt(40))
    for i in range(12):
        engine.add(prompt(4, 7 * i + 40), max_tokens=1)
    starts = [shape(engine.step())[0] for _ in range(5)]
    assert [(seq_id, start) for seq_id, start, *_ in starts] == [(0, 4 * i) for i in range(5)]


def test_those_without_a_share_wait_for_the_budget() -> None:
    engine = Harness(max_num_batched_tokens=8, num_blocks=100)
    for i in range(3):
        engine.add(prompt(30 - i, 40 * i))
    assert shape(engine.step()) == [(0, 0, 4, 0), (2, 0, 4, 0)]
    stats = engine.scheduler.view.stats()
    assert (stats.num_waiting, stats.waiting_budget, stats.waiting_capacity) == (1, 1, 0)
    assert [r.waiting_reason for r in engine.scheduler.view.requests()] == [None, "budget", None]


def test_a_step_looks_only_so_far_beyond_those_that_want_its_budget() -> None:
    engine = Harness(max_num_batched_tokens=16, max_num_seqs=16, num_blocks=200)
    for i in range(MAX_LOOKAHEAD):
        engine.add(prompt(30, 20 * i))
    engine.add(prompt(3, 220))
    assert [seq_id for seq_id, *_ in shape(engine.step())] == [0]
    engine = Harness(max_num_batched_tokens=16, max_num_seqs=16, num_blocks=200)
    for i in range(MAX_LOOKAHEAD - 1):
        engine.add(prompt(30, 20 * i))
    engine.add(prompt(3, 220))
    assert [seq_id for seq_id, *_ in shape(engine.step())] == [0, MAX_LOOKAHEAD - 1]


def test_candidates_take_a_slot_each_before_they_are_born() -> None:
    engine = Harness(max_num_seqs=4, num_blocks=60)
    engine.add(prompt(4), n=3)
    engine.add(prompt(4, 50), n=2)
    engine.add(prompt(4, 90))
    assert shape(engine.step()) == [(0, 0, 4, 3), (5, 0, 4, 1)]
    stats = engine.scheduler.view.stats()
    assert (stats.num_running, stats.num_waiting, stats.waiting_capacity) == (4, 1, 1)
    engine.run()


def test_what_running_prefills_still_need_is_not_given_away() -> None:
    engine = Harness(max_num_batched_tokens=8)
    engine.add(prompt(30))
    engine.step()
    engine.add(prompt(8, 50))
    assert shape(engine.step()) == [(0, 8, 8, 0)]
    assert engine.scheduler.view.stats().waiting_capacity == 1
    engine.run()
    assert engine.scheduler.view.stats().counters.preemptions == 0


def test_tails_of_unborn_candidates_are_counted() -> None:
    engine = Harness()
    engine.add(prompt(6), n=5, max_tokens=2)
    engine.add(prompt(10, 50))
    engine.add(prompt(3, 90))
    assert [seq_id for seq_id, *_ in shape(engine.step())] == [0, 5, 6]
    engine = Harness()
    engine.add(prompt(6), n=5, max_tokens=2)
    engine.add(prompt(16, 50))
    assert [seq_id for seq_id, *_ in shape(engine.step())] == [0]


def test_cached_blocks_of_a_hit_are_no_longer_free_once_used() -> None:
    engine = Harness()
    engine.add(prompt(21), max_tokens=1)
    engine.run()
    assert engine.scheduler.view.stats().blocks.cached == 5
    engine.add(prompt(21), max_tokens=8)
    engine.add(prompt(17, 50), max_tokens=8)
    plan = engine.step()
    assert shape(plan) == [(1, 20, 1, 1)]
    assert plan.scheduled[0].block_table == [0, 1, 2, 3, 4, 5]
    assert engine.scheduler.view.stats().waiting_capacity == 1
    engine.run()


def test_live_blocks_of_a_hit_cost_nothing() -> None:
    engine = Harness()
    engine.add(prompt(29), max_tokens=8)
    engine.step()
    engine.add(prompt(30), max_tokens=2)
    assert shape(engine.step()) == [(0, 29, 1, 1), (1, 28, 2, 1)]
    assert engine.scheduler.view.stats().blocks.shared == 7
    engine.run()


def test_hit_that_an_admission_before_it_evicts_is_recomputed() -> None:
    engine = Harness(num_blocks=8)
    engine.add(prompt(5), max_tokens=1)
    engine.run()
    engine.add(prompt(26, 50), max_tokens=1)
    engine.add(prompt(5), max_tokens=1)
    engine.run()
    assert [len(engine.texts[i, 0]) for i in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9, 12])
def test_text_is_the_same_hot_as_cold_and_one_token_is_always_computed(length: int) -> None:
    engine = Harness()
    for _ in range(2):
        engine.add(prompt(length), max_tokens=6)
        engine.run()
    assert engine.texts[0, 0] == engine.texts[1, 0]
    num_cached = length - 1
    assert engine.ends[1, 0].usage.cached_tokens == num_cached
    assert any(e.start_position == num_cached for p in engine.runner.plans[6:] for e in p.scheduled)


def test_chunked_prefill_starts_at_the_hit() -> None:
    engine = Harness(max_num_batched_tokens=8)
    engine.add(prompt(13), max_tokens=1)
    engine.run()
    engine.add([*prompt(13), *prompt(10, 100)], max_tokens=1)
    assert shape(engine.step()) == [(1, 12, 8, 0)]
    assert shape(engine.step()) == [(1, 20, 3, 1)]
    assert engine.progress[-2:] == [(1, 20), (1, 23)]


def test_prefix_counters_count_tokens_of_first_passes() -> None:
    engine = Harness()
    engine.add(prompt(9), max_tokens=1, n=3)
    engine.run()
    engine.add(prompt(10), max_tokens=1)
    engine.run()
    counters = engine.scheduler.view.stats().counters
    assert (counters.prefix_queries, counters.prefix_hits, counters.prompt_tokens) == (19, 8, 19)
    assert [engine.ends[0, i].usage.cached_tokens for i in range(3)] == [0, 0, 0]


def test_edited_prompt_computes_from_where_it_was_edited() -> None:
    engine = Harness(num_blocks=20)
    engine.add(prompt(19), max_tokens=1)
    engine.run()
    engine.add([*prompt(10), *prompt(9, 100)], max_tokens=1)
    plan = engine.step()
    assert plan.block_copies == (BlockCopy(2, 4),)
    assert shape(plan) == [(1, 10, 9, 1)]
    assert engine.ends[1, 0].usage.cached_tokens == 10
    assert engine.scheduler.view.stats().counters.prefix_hits == 10
    assert engine.scheduler.view.stats().counters.cow_copies == 0


def test_answer_forked_in_the_middle_computes_only_what_is_new() -> None:
    engine = Harness(num_blocks=20)
    engine.add(prompt(6), max_tokens=12)
    engine.run()
    engine.add([*prompt(6), *engine.texts[0, 0][:8], 200], n=3, seed=1, max_tokens=4)
    assert shape(engine.step()) == [(1, 14, 1, 3)]
    engine.run()
    assert {end.usage.cached_tokens for key, end in engine.ends.items() if key[0]} == {14}


def test_preempted_sequence_takes_back_what_another_has_of_it_in_part() -> None:
    engine = Harness(num_blocks=20)
    engine.add(prompt(8), max_tokens=30)
    engine.add([*prompt(6), *prompt(4, 100)], max_tokens=6)
    engine.steps(2)
    engine.preempt(1)
    pool = engine.scheduler.kv.pool
    pool.free([pool.allocate() for _ in range(pool.num_available)])
    plan = engine.step()
    assert plan.block_copies == (BlockCopy(1, engine.requests[1].sequences[0].block_table[1]),)
    assert shape(plan)[1] == (1, 6, 6, 1)
    engine.run()
    assert engine.ends[1, 0].usage.cached_tokens == 0


def test_failed_step_lets_go_of_the_source_of_its_copy() -> None:
    engine = Harness()
    engine.add(prompt(8), max_tokens=1)
    engine.run()
    engine.add([*prompt(6), 100], max_tokens=1)
    engine.scheduler.schedule()
    assert engine.num_live_blocks == 3
    engine.take(engine.scheduler.fail_step("broken"))
    engine.scheduler.check_integrity()
    assert engine.num_live_blocks == 0


def test_sequence_aborted_while_its_part_is_copied_leaves_nothing() -> None:
    engine = Harness()
    engine.add(prompt(8), max_tokens=1)
    engine.run()
    request = engine.add([*prompt(6), 100], max_tokens=1)
    plan = engine.scheduler.schedule()
    engine.abort(request)
    engine.take(engine.scheduler.update(plan, engine.runner.execute(plan)))
    engine.scheduler.check_integrity()
    assert engine.num_live_blocks == 0
