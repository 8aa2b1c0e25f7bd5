"""What people see of the scheduling half: stats, the block map, requests. Ten blocks of four tokens unless said."""

from engine.stats import BlockDetail, BlockHolder, BlockInfo, BlockState
from tests.fakes import Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def test_stats_count_blocks_and_tokens() -> None:
    engine = Harness()
    engine.add(prompt(9), n=2)
    engine.steps(2)
    stats = engine.scheduler.view.stats()
    assert (stats.num_steps, stats.num_running, stats.num_waiting) == (2, 2, 0)
    blocks = stats.blocks
    assert (blocks.private, blocks.shared, blocks.cached, blocks.free) == (2, 2, 0, 6)
    assert (stats.tokens_stored, stats.tokens_capacity) == (8 + 2 + 2, 40)
    counters = stats.counters
    assert (counters.generated_tokens, counters.prompt_tokens, counters.requests) == (4, 9, 1)
    assert (counters.forks, counters.cow_copies, counters.preemptions) == (1, 1, 0)


def test_block_map_names_state_and_owners() -> None:
    engine = Harness(num_blocks=6)
    engine.add(prompt(9), max_tokens=1)
    engine.run()
    engine.add(prompt(6), n=2)
    engine.step()
    engine.add(prompt(6))
    engine.step()
    owners = (1, 2)
    taken = engine.scheduler.view.block_map()
    engine.run()
    assert tuple(taken) == (
        BlockInfo(0, BlockState.SHARED, 3, owners),
        BlockInfo(1, BlockState.CACHED, 0, ()),
        BlockInfo(2, BlockState.PRIVATE, 1, (1,)),
        BlockInfo(3, BlockState.PRIVATE, 1, (1,)),
        BlockInfo(4, BlockState.PRIVATE, 1, (2,)),
        BlockInfo(5, BlockState.FREE, 0, ()),
    )


def test_requests_are_described_in_order_of_arrival() -> None:
    engine = Harness()
    engine.add(prompt(9), n=3)
    engine.steps(2)
    engine.abort(engine.requests[0], 2)
    engine.add(prompt(6, 50))
    first, second = engine.scheduler.view.requests()
    assert (first.request_id, first.state, first.waiting_reason) == (0, "running", None)
    assert (first.num_candidates, first.prompt_tokens, first.computed_tokens) == (2, 9, 10)
    assert (first.generated_tokens, first.cached_tokens) == (6, 0)
    assert (first.blocks_private, first.blocks_shared, first.blocks_saved) == (2, 2, 2)
    assert first.age_s >= 0
    assert (second.request_id, second.state, second.num_candidates) == (1, "waiting", 1)
    assert (second.blocks_private, second.blocks_shared, second.blocks_saved) == (0, 0, 0)


def test_the_compact_map_says_what_the_long_one_does() -> None:
    engine = Harness(num_blocks=12)
    engine.add(prompt(9), max_tokens=1)
    engine.run()
    engine.add(prompt(6), n=2)
    engine.step()
    engine.add(prompt(6))
    for _ in range(6):
        cells, blocks = engine.scheduler.view.block_cells(), engine.scheduler.view.block_map()
        numbers = {state: number for number, state in enumerate(BlockState)}
        assert list(cells.states) == [numbers[block.state] for block in blocks]
        assert list(cells.owners) == [min(block.owners, default=0) for block in blocks]
        engine.step()


def test_a_block_looked_at_closely() -> None:
    engine = Harness()
    engine.add(prompt(3))
    engine.add(prompt(9), n=2)
    engine.steps(2)
    shared = engine.scheduler.view.block(engine.scheduler._roster.running[1].block_table[1])
    assert shared is not None
    assert (shared.state, shared.ref_count, shared.num_tokens) == (BlockState.SHARED, 2, 4)
    assert shared.holders == (BlockHolder(1, 0, 1), BlockHolder(1, 1, 1))
    assert engine.scheduler.view.block(9) == BlockDetail(9, BlockState.FREE, 0, 0, ())
    assert engine.scheduler.view.block(10) is None
    assert engine.scheduler.view.block(-1) is None


def test_what_sharing_saves_within_requests_and_between_them() -> None:
    engine = Harness(num_blocks=20)
    engine.add(prompt(9), n=3, seed=1)
    engine.steps(2)
    report = engine.scheduler.view.requests_report()
    assert (report.saved_by_forks, report.saved_by_prefix_cache) == (4, 0)
    engine.add(prompt(9), max_tokens=20)
    engine.step()
    report = engine.scheduler.view.requests_report()
    assert (report.saved_by_forks, report.saved_by_prefix_cache) == (4, 2)
    assert engine.scheduler.view.stats().blocks_saved == 6
    engine.run()
    report = engine.scheduler.view.requests_report()
    assert (report.saved_by_forks, report.saved_by_prefix_cache) == (0, 0)


def test_a_preempted_candidate_behind_its_sibling_is_deferred() -> None:
    engine = Harness(max_num_batched_tokens=8, num_blocks=40)
    engine.add(prompt(21), n=2, seed=1)
    engine.steps(4)
    engine.preempt()
    engine.preempt()
    engine.add(prompt(36, 100))
    for block in engine.scheduler.kv.pool.blocks:
        if block.key is not None:
            engine.scheduler.kv.pool._cache.remove(block.key)
            block.key = None
    engine.scheduler.kv.pool._num_cached = 0
    engine.scheduler.kv.pool.states[:] = bytes(40)
    engine.step()
    stats = engine.scheduler.view.stats()
    assert (stats.num_waiting, stats.waiting_deferred) == (stats.waiting_budget + 1, 1)
    assert engine.scheduler.view.requests()[0].waiting_reason == "deferred"
