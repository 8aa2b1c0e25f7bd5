"""Who is pushed out, how they come back, and candidates that fork, on a fake model."""

import pytest

from engine.outputs import FinishReason
from tests.engine.plans import prompt, shape
from tests.fakes import Harness


def test_victim_that_loses_least_is_preempted_although_another_is_younger() -> None:
    engine = Harness(num_blocks=7)
    engine.add(prompt(7), max_tokens=9)
    engine.add(prompt(3, 50), max_tokens=9)
    engine.add(prompt(11, 100), max_tokens=9)
    engine.steps(2)
    assert engine.free_block_ids == [6]
    assert [seq_id for seq_id, *_ in shape(engine.step())] == [0, 2]
    assert [r.state for r in engine.scheduler.view.requests()] == [
        "running",
        "preempted",
        "running",
    ]
    engine.run()


def test_youngest_of_those_that_lose_the_same_is_preempted() -> None:
    engine = Harness(num_blocks=6)
    for i in range(3):
        engine.add(prompt(7, 50 * i), max_tokens=9)
    engine.steps(3)
    assert [r.state for r in engine.scheduler.view.requests()] == [
        "running",
        "running",
        "preempted",
    ]
    engine.run()


def test_lowest_priority_is_preempted_first_however_much_it_loses() -> None:
    engine = Harness(num_blocks=7)
    engine.add(prompt(11), max_tokens=9, priority=1)
    engine.add(prompt(7, 50), max_tokens=9)
    engine.add(prompt(3, 100), max_tokens=9)
    engine.steps(3)
    assert [r.state for r in engine.scheduler.view.requests()] == [
        "preempted",
        "running",
        "running",
    ]
    engine.run()


def test_candidate_whose_siblings_keep_the_prompt_loses_only_its_tail() -> None:
    engine = Harness(num_blocks=9)
    engine.add(prompt(3), max_tokens=20)
    engine.add(prompt(6, 50), max_tokens=20)
    engine.add(prompt(12, 100), n=2, seed=1, max_tokens=20)
    engine.steps(4)
    states = [seq.status for request in engine.requests for seq in request.sequences]
    assert states == ["running", "running", "running", "preempted"]
    engine.run()


def test_first_in_rank_is_never_preempted_while_another_runs() -> None:
    engine = Harness(num_blocks=8)
    engine.add(prompt(2), max_tokens=20)
    for i in range(6):
        engine.add(prompt(11, 50 * i), max_tokens=5)
    ends: list[int] = []
    while (0, 0) not in engine.ends:
        plan = engine.step()
        ends.append(len(engine.texts[0, 0]))
        assert plan.scheduled[0].seq_id == 0
    assert ends == list(range(1, 21))
    assert engine.scheduler.view.stats().counters.preemptions > 0
    engine.run()


def test_youngest_running_sequence_is_preempted_and_returns_when_its_context_fits() -> None:
    engine = Harness(num_blocks=4)
    engine.add(prompt(7), max_tokens=7)
    engine.add(prompt(7, 50), max_tokens=7)
    engine.steps(2)
    assert engine.free_block_ids == []
    assert shape(engine.step()) == [(0, 8, 1, 1)]
    stats = engine.scheduler.view.stats()
    assert (stats.num_running, stats.num_waiting, stats.counters.preemptions) == (1, 1, 1)
    assert [r.state for r in engine.scheduler.view.requests()] == ["running", "preempted"]
    assert engine.scheduler.view.requests()[1].waiting_reason == "capacity"
    engine.run()
    assert engine.scheduler.view.stats().counters.preemptions == 1
    assert [len(engine.texts[i, 0]) for i in (0, 1)] == [7, 7]


def test_preempted_sequence_stands_at_the_front_of_the_queue() -> None:
    engine = Harness(num_blocks=4)
    for i in range(3):
        engine.add(prompt(7, 50 * i), max_tokens=7)
    engine.steps(3)
    assert [seq.seq_id for seq in engine.scheduler._roster.waiting] == [1, 2]
    assert [r.state for r in engine.scheduler.view.requests()] == [
        "running",
        "preempted",
        "waiting",
    ]
    engine.run()


def test_preemption_frees_in_reverse_and_reuses_what_is_left_in_the_cache() -> None:
    engine = Harness(num_blocks=7)
    engine.add(prompt(11), max_tokens=4)
    engine.add(prompt(14, 50), max_tokens=3)
    engine.steps(2)
    plan = engine.step()
    assert shape(plan) == [(0, 12, 1, 1)]
    assert plan.scheduled[0].block_table == [0, 1, 2, 6]
    assert engine.free_block_ids == [5, 4, 3]
    engine.run()
    resumed = [e for p in engine.runner.plans[3:] for e in p.scheduled if e.seq_id == 1]
    assert (resumed[0].start_position, len(resumed[0].token_ids)) == (12, 4)
    assert engine.ends[1, 0].usage.cached_tokens == 0


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("caching", [True, False])
def test_preemption_is_invisible(length: int, caching: bool) -> None:
    engine = Harness(num_blocks=7, enable_prefix_caching=caching, max_num_batched_tokens=8)
    for i in range(4):
        engine.add(prompt(length, 50 * i), max_tokens=12, seed=i, logprobs=1)
    engine.run()
    assert engine.scheduler.view.stats().counters.preemptions > 0
    assert {len(text) for text in engine.texts.values()} == {12}
    assert engine.num_live_blocks == 0


def test_preempted_prompt_starts_over_and_candidates_are_born_later() -> None:
    engine = Harness(num_blocks=6, max_num_batched_tokens=8)
    engine.add(prompt(7), max_tokens=12)
    engine.step()
    engine.add(prompt(9, 50), n=2, max_tokens=3)
    engine.step()
    engine.preempt()
    assert [len(r.sequences[0].followers) for r in engine.requests] == [0, 1]
    engine.run()
    assert [len(engine.texts[1, i]) for i in (0, 1)] == [3, 3]


def test_only_sequence_that_outgrows_the_pool_ends_with_length() -> None:
    engine = Harness(num_blocks=3)
    engine.add(prompt(5), max_tokens=100)
    engine.run()
    assert engine.ends[0, 0].reason is FinishReason.LENGTH
    assert len(engine.texts[0, 0]) == 3 * 4 + 1 - 5
    assert engine.num_live_blocks == 0


def test_sequences_that_outgrow_the_pool_together_get_the_text_they_get_alone() -> None:
    engine = Harness(num_blocks=3)
    for i in range(3):
        engine.add(prompt(2, 50 * i), max_tokens=100)
    engine.run()
    assert {len(text) for text in engine.texts.values()} == {3 * 4 + 1 - 2}


def test_prefills_that_block_each_other_give_way_to_the_oldest() -> None:
    engine = Harness(num_blocks=10, max_num_batched_tokens=8)
    engine.add(prompt(16), max_tokens=4)
    engine.add(prompt(14, 50), max_tokens=4)
    engine.steps(2)
    stolen = [engine.scheduler.kv.pool.allocate() for _ in range(6)]
    plan = engine.scheduler.schedule()
    assert [(e.seq_id, e.start_position) for e in plan.scheduled] == [(0, 8)]
    assert engine.scheduler.view.stats().counters.preemptions == 1
    engine.scheduler.kv.pool.free(stolen)
    engine.take(engine.scheduler.update(plan, engine.runner.execute(plan)))
    engine.run()


def test_candidates_fork_after_the_prompt_and_each_draws_its_first_token() -> None:
    engine = Harness(max_num_batched_tokens=8)
    engine.add(prompt(10), n=3, seed=5)
    assert shape(engine.step()) == [(0, 0, 8, 0)]
    assert engine.scheduler.view.stats().blocks.private == 2
    plan = engine.step()
    assert shape(plan) == [(0, 8, 2, 3)]
    assert [s.seed for s in plan.scheduled[0].samples] == [5, 6, 7]
    stats = engine.scheduler.view.stats()
    assert (stats.num_running, stats.counters.forks, stats.counters.cow_copies) == (3, 2, 0)
    assert (stats.blocks.private, stats.blocks.shared, stats.tokens_stored) == (0, 3, 10)
    plan = engine.step()
    assert shape(plan) == [(0, 10, 1, 1), (1, 10, 1, 1), (2, 10, 1, 1)]
    assert [(c.src, c.dst) for c in plan.block_copies] == [(2, 3), (2, 4)]
    engine.run()
    assert len({text[0] for text in engine.texts.values()}) == 3


def test_more_candidates_than_the_pool_can_hold_at_once_all_finish() -> None:
    engine = Harness(num_blocks=4)
    engine.add(prompt(6), n=5, seed=1, max_tokens=9)
    engine.run()
    assert engine.scheduler.view.stats().counters.preemptions > 0
    assert [len(engine.texts[0, i]) for i in range(5)] == [9] * 5


def test_preempted_candidate_keeps_its_siblings_and_shares_their_prompt_again() -> None:
    engine = Harness(num_blocks=6)
    engine.add(prompt(8), n=2, seed=1, max_tokens=9)
    engine.steps(4)
    engine.preempt()
    assert engine.scheduler.view.requests()[0].state == "running"
    plan = engine.step()
    assert [e.block_table[:2] for e in plan.scheduled] == [[0, 1], [0, 1]]
    assert engine.scheduler.view.stats().blocks.shared == 2
    engine.run()


def test_candidate_that_ends_early_leaves_the_others_alone() -> None:
    engine = Harness(lambda request, context: 7 if request.seed == 2 else 9)
    engine.add(prompt(6), n=3, seed=1, max_tokens=5, stop_token_ids=(7,))
    engine.run()
    assert [engine.texts[0, i] for i in range(3)] == [[9] * 5, [7], [9] * 5]
    assert [engine.ends[0, i].reason for i in range(3)] == ["length", "stop", "length"]
    assert engine.ends[0, 1].stop_token_id == 7
