"""The block pool on ten blocks of four tokens: exact ids, exact order, exact counts."""

from collections.abc import Callable

import pytest

from engine.block_pool import Block, BlockPool, FreeBlockQueue
from engine.prefix_cache import PartHit
from engine.stats import BlockState

Breakage = Callable[[BlockPool], object]


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(10, 4)


def free_ids(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_queue]


def take(pool: BlockPool, count: int) -> list[int]:
    return [pool.allocate() for _ in range(count)]


def cache(pool: BlockPool, block_id: int, key: bytes) -> None:
    pool.cache(block_id, key, b"parent", [1, 2, 3, *key])


def take_cached(pool: BlockPool, *keys: bytes) -> list[int]:
    table = take(pool, len(keys))
    for block_id, key in zip(table, keys, strict=True):
        pool.fill(block_id, 4)
        cache(pool, block_id, key)
    return table


def numbers(pool: BlockPool) -> tuple[int, int, int, int, int]:
    counts = pool.counts
    assert counts.private + counts.shared + counts.cached + counts.free == counts.total == 10
    return counts.private, counts.shared, counts.cached, counts.free, pool.tokens_stored


def test_queue_keeps_order_and_lets_any_block_go() -> None:
    blocks = [Block(i) for i in range(5)]
    queue = FreeBlockQueue(blocks[:4])
    queue.remove(blocks[2])
    queue.appendleft(blocks[4])
    queue.append(blocks[2])
    assert [b.block_id for b in queue] == [4, 0, 1, 3, 2]
    assert [queue.popleft().block_id for _ in range(len(queue))] == [4, 0, 1, 3, 2]
    assert list(queue) == []


def test_queue_refuses_what_is_not_there() -> None:
    block = Block(0)
    queue = FreeBlockQueue([block])
    with pytest.raises(AssertionError, match="free already"):
        queue.append(block)
    queue.popleft()
    with pytest.raises(AssertionError, match="not free"):
        queue.remove(block)
    with pytest.raises(AssertionError, match="empty"):
        queue.popleft()


def test_fresh_pool_hands_out_ids_in_order(pool: BlockPool) -> None:
    assert take(pool, 3) == [0, 1, 2]
    assert free_ids(pool) == [3, 4, 5, 6, 7, 8, 9]


def test_blocks_without_a_key_return_to_the_front_in_table_order(pool: BlockPool) -> None:
    table = take(pool, 3)
    assert pool.free(table) == 3
    assert free_ids(pool) == list(range(10))


def test_cached_chain_goes_to_the_back_tail_first(pool: BlockPool) -> None:
    table = take_cached(pool, b"a", b"b", b"c") + take(pool, 1)
    pool.free(table)
    assert free_ids(pool) == [3, 4, 5, 6, 7, 8, 9, 2, 1, 0]
    take(pool, 7)
    assert pool.allocate() == 2
    assert [pool.lookup(key) is None for key in (b"a", b"b", b"c")] == [False, False, True]


def test_block_reused_for_something_else_is_found_under_no_old_key(pool: BlockPool) -> None:
    pool.free(take_cached(pool, b"a"))
    take(pool, 10)
    assert pool.lookup(b"a") is None
    assert numbers(pool) == (10, 0, 0, 0, 0)


def test_sharing_a_cached_block_takes_it_from_the_middle_of_the_queue(pool: BlockPool) -> None:
    pool.free(take_cached(pool, b"a", b"b", b"c"))
    pool.share(1)
    assert free_ids(pool) == [3, 4, 5, 6, 7, 8, 9, 2, 0]
    found = pool.lookup(b"b")
    assert found is not None
    assert (found.block_id, found.ref_count) == (1, 1)


def test_recently_used_chain_is_evicted_last(pool: BlockPool) -> None:
    old, new = take_cached(pool, b"a"), take_cached(pool, b"b")
    pool.free(old)
    pool.free(new)
    pool.share(0)
    pool.free([0])
    assert free_ids(pool)[-2:] == [1, 0]


def test_first_block_under_a_key_stays(pool: BlockPool) -> None:
    first, second = take_cached(pool, b"a", b"a")
    found = pool.lookup(b"a")
    assert found is not None
    assert found.block_id == first
    pool.free([second])
    assert pool.blocks[second].state is BlockState.FREE


def test_part_of_a_block_is_found_until_the_block_is_evicted(pool: BlockPool) -> None:
    pool.free(take_cached(pool, b"a"))
    assert pool.lookup_part(b"parent", [1, 2, 9]) == PartHit(0, 2)
    take(pool, 9)
    assert pool.lookup_part(b"parent", [1, 2, 9]) == PartHit(0, 2)
    assert pool.allocate() == 0
    assert pool.lookup_part(b"parent", [1, 2, 9]) is None


def test_counts_follow_every_transition(pool: BlockPool) -> None:
    seen = [numbers(pool)]
    (block_id,) = take_cached(pool, b"a")
    seen.append(numbers(pool))
    for action in (pool.share, pool.share, pool.share):
        action(block_id)
    seen.append(numbers(pool))
    pool.free([block_id])
    pool.free([block_id])
    pool.free([block_id])
    seen.append(numbers(pool))
    assert pool.free([block_id]) == 1
    seen.append(numbers(pool))
    pool.share(block_id)
    seen.append(numbers(pool))
    assert seen == [
        (0, 0, 0, 10, 0),
        (1, 0, 0, 9, 4),
        (0, 1, 0, 9, 4),
        (1, 0, 0, 9, 4),
        (0, 0, 1, 9, 0),
        (1, 0, 0, 9, 4),
    ]


def test_tokens_are_stored_once_however_many_share_them(pool: BlockPool) -> None:
    table = take(pool, 2)
    pool.fill(table[0], 4)
    pool.fill(table[1], 3)
    pool.share(table[1])
    assert pool.tokens_stored == 7
    assert pool.free(table) == 1
    assert pool.tokens_stored == 3


def test_misuse_is_caught(pool: BlockPool) -> None:
    with pytest.raises(AssertionError, match="holds nothing to share"):
        pool.share(0)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([0])
    block_id = pool.allocate()
    pool.fill(block_id, 3)
    with pytest.raises(AssertionError, match="half full"):
        cache(pool, block_id, b"a")
    pool.fill(block_id, 4)
    pool.free([block_id])
    with pytest.raises(AssertionError, match="unreferenced"):
        cache(pool, block_id, b"a")


def _free_a_referenced_block(pool: BlockPool) -> None:
    pool.free_queue.append(pool.blocks[0])


def _lose_a_free_block(pool: BlockPool) -> None:
    pool.free_queue.popleft()


def _forget_a_key(pool: BlockPool) -> None:
    pool.blocks[0].key = None


def _swap_a_key(pool: BlockPool) -> None:
    pool.blocks[0].key = b"other"


def _forget_a_part(pool: BlockPool) -> None:
    pool._cache._children.clear()


def _miscount_references(pool: BlockPool) -> None:
    pool.blocks[0].ref_count += 1


def _miscount_tokens(pool: BlockPool) -> None:
    pool.tokens_stored += 1


def _half_empty_a_cached_block(pool: BlockPool) -> None:
    pool.blocks[0].num_tokens = 3
    pool.tokens_stored -= 1


@pytest.mark.parametrize(
    ("breakage", "complaint"),
    [
        (_free_a_referenced_block, "free and referenced"),
        (_lose_a_free_block, "neither free nor referenced"),
        (_forget_a_key, "disagree"),
        (_swap_a_key, "disagree"),
        (_forget_a_part, "in part"),
        (_miscount_references, "are miscounted"),
        (_miscount_tokens, "tokens counted"),
        (_half_empty_a_cached_block, "not full"),
    ],
)
def test_check_integrity_notices(pool: BlockPool, breakage: Breakage, complaint: str) -> None:
    take_cached(pool, b"a")
    pool.check_integrity()
    breakage(pool)
    with pytest.raises(AssertionError, match=complaint):
        pool.check_integrity()
