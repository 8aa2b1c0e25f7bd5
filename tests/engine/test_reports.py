"""What people see of the scheduling half: stats, the block map, requests. Ten blocks of four tokens unless said."""

from engine.stats import BlockInfo, BlockState
from tests.fakes import Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def test_stats_count_blocks_and_tokens() -> None:
    engine = Harness()
    engine.add(prompt(9), n=2)
    engine.steps(2)
    stats = engine.scheduler.stats()
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
    assert engine.scheduler.block_map() == (
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
    first, second = engine.scheduler.requests()
    assert (first.request_id, first.state, first.waiting_reason) == (0, "running", None)
    assert (first.num_candidates, first.prompt_tokens, first.computed_tokens) == (2, 9, 10)
    assert (first.generated_tokens, first.cached_tokens) == (6, 0)
    assert (first.blocks_private, first.blocks_shared, first.blocks_saved) == (2, 2, 2)
    assert first.age_s >= 0
    assert (second.request_id, second.state, second.num_candidates) == (1, "waiting", 1)
    assert (second.blocks_private, second.blocks_shared, second.blocks_saved) == (0, 0, 0)
