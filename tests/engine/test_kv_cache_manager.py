"""Block tables and the prefix cache by exact block ids, and what check_integrity notices."""

from collections.abc import Callable

import pytest

from engine.kv_cache_manager import KVCacheManager, block_key, root_key
from engine.sequence import Sequence
from tests.engine.cache_steps import compute, computed, free_ids, make_sequence
from tests.fakes import make_config


@pytest.mark.parametrize(("length", "table"), [(3, [0]), (4, [0]), (5, [0, 1])])
def test_blocks_are_taken_only_for_tokens_that_are_computed(
    kv: KVCacheManager, length: int, table: list[int]
) -> None:
    assert computed(kv, list(range(length))).block_table == table


def test_table_grows_by_a_block_exactly_at_its_edge(kv: KVCacheManager) -> None:
    seq = computed(kv, [1, 2, 3])
    tables = []
    for token in range(6):
        compute(kv, seq)
        seq.append(token, 0.0)
        tables.append(seq.block_table.copy())
    assert tables == [[0], [0, 1], [0, 1], [0, 1], [0, 1], [0, 1, 2]]


def test_allocation_is_all_or_nothing(kv: KVCacheManager) -> None:
    computed(kv, list(range(30)))
    seq = make_sequence(list(range(50, 63)))
    before = free_ids(kv)
    assert kv.allocate_slots(seq, 13) is None
    assert (seq.block_table, free_ids(kv)) == ([], before)
    assert kv.allocate_slots(seq, 8) == []
    assert seq.block_table == [8, 9]


def test_who_waits_costs_a_check_no_digest(
    kv: KVCacheManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> bytes:
        raise AssertionError("a digest was made")

    monkeypatch.setattr("engine.kv_cache_manager.root_key", refuse)
    kv.check_integrity([make_sequence([1, 2, 3])])


def test_freed_table_returns_in_reverse_so_that_its_tail_is_evicted_first(
    kv: KVCacheManager,
) -> None:
    seq = computed(kv, list(range(13)))
    assert kv.free(seq) == 4
    assert free_ids(kv) == [3, 4, 5, 6, 7, 8, 9, 2, 1, 0]
    assert (seq.block_table, seq.num_computed_tokens) == ([], 0)


@pytest.mark.parametrize(
    ("length", "num_hits"), [(1, 0), (3, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3)]
)
def test_hit_leaves_at_least_one_token_to_compute(
    kv: KVCacheManager, length: int, num_hits: int
) -> None:
    tokens = list(range(13))
    kv.free(computed(kv, tokens))
    seq = make_sequence(tokens[:length])
    hits = kv.lookup(seq)
    assert hits == [0, 1, 2][:num_hits]
    kv.attach(seq, hits)
    assert (seq.block_table, seq.num_computed_tokens) == (hits, num_hits * 4)
    compute(kv, seq)
    seq.append(99, 0.0)
    kv.check_integrity([seq])


def test_hit_stops_at_the_first_miss(kv: KVCacheManager) -> None:
    seq = computed(kv, list(range(17)))
    middle = kv.pool.blocks[1]
    assert middle.key is not None
    kv.free(seq)
    kv.pool.free_queue.remove(middle)
    kv.pool.free_queue.appendleft(middle)
    assert kv.pool.allocate() == 1
    assert kv.lookup(make_sequence(list(range(17)))) == [0]


def test_hit_stops_where_the_tokens_differ(kv: KVCacheManager) -> None:
    kv.free(computed(kv, list(range(12))))
    assert kv.lookup(make_sequence([0, 1, 2, 3, 4, 5, 6, 77, 8, 9, 10, 11, 12])) == [0]


def test_same_tokens_at_another_position_do_not_hit(kv: KVCacheManager) -> None:
    kv.free(computed(kv, [1, 2, 3, 4, 1, 2, 3, 4, 5]))
    assert kv.lookup(make_sequence([9, 9, 9, 9, 1, 2, 3, 4, 5])) == []
    assert kv.lookup(make_sequence([1, 2, 3, 4, 5])) == [0]


def test_block_enters_the_cache_after_the_step_that_wrote_it(kv: KVCacheManager) -> None:
    writer, reader = make_sequence(list(range(9))), make_sequence(list(range(9)))
    kv.allocate_slots(writer, 9)
    assert kv.lookup(reader) == []
    kv.commit(writer, 9)
    assert kv.lookup(reader) == [0, 1]


def test_blocks_of_a_step_that_was_not_executed_are_never_found(kv: KVCacheManager) -> None:
    seq = make_sequence(list(range(13)))
    compute(kv, seq, 6)
    kv.allocate_slots(seq, 7)
    kv.free(seq)
    assert kv.lookup(make_sequence(list(range(13)))) == [0]


def test_generated_tokens_are_cached_too(kv: KVCacheManager) -> None:
    seq = computed(kv, [1, 2, 3])
    compute(kv, seq)
    kv.free(seq)
    assert kv.lookup(make_sequence([1, 2, 3, 99, 5])) == [0]


def test_evicted_block_is_not_found(kv: KVCacheManager) -> None:
    kv.free(computed(kv, list(range(9))))
    computed(kv, list(range(100, 136)))
    assert kv.lookup(make_sequence(list(range(9)))) == [0]
    kv.pool.allocate()
    assert kv.lookup(make_sequence(list(range(9)))) == []


@pytest.mark.parametrize("salt", [None, "", "b"])
def test_salts_do_not_see_each_other(kv: KVCacheManager, salt: str | None) -> None:
    kv.free(computed(kv, list(range(9)), salt="a"))
    assert kv.lookup(make_sequence(list(range(9)), salt)) == []
    assert kv.lookup(make_sequence(list(range(9)), "a")) == [0, 1]


def test_parts_of_a_key_cannot_run_into_each_other() -> None:
    roots = [
        root_key("model", None),
        root_key("model", ""),
        root_key("modelsalt", None),
        root_key("model", "salt"),
        root_key("models", "alt"),
        root_key("model:1:4:salt", ""),
        root_key("", "model"),
        root_key("model", "\ud800"),
    ]
    keys = [block_key(root, [1, 2]) for root in roots] + [block_key(roots[0], [12])]
    assert len(set(roots + keys)) == len(roots) + len(keys)
    assert min(map(len, keys)) >= 16


def test_without_prefix_caching_nothing_is_found() -> None:
    kv = KVCacheManager(make_config(enable_prefix_caching=False))
    kv.free(computed(kv, list(range(9))))
    assert kv.lookup(make_sequence(list(range(9)))) == []
    assert kv.pool.counts.cached == 0


def test_live_hits_are_told_from_cached_ones(kv: KVCacheManager) -> None:
    first = computed(kv, list(range(9)))
    hits = kv.lookup(make_sequence(list(range(9))))
    assert (hits, kv.num_live(hits)) == ([0, 1], 2)
    kv.free(first)
    assert (kv.lookup(make_sequence(list(range(9)))), kv.num_live(hits)) == ([0, 1], 0)


def test_live_hit_behind_a_cached_one_counts_as_cached(kv: KVCacheManager) -> None:
    """Nothing leads to it once the cached one is evicted: who counts on it finds no block then."""
    first, second = make_sequence(list(range(9))), make_sequence(list(range(13)))
    for seq in (first, second):
        kv.allocate_slots(seq, 8)
    for seq in (first, second):
        kv.commit(seq, 8)
    compute(kv, second)
    kv.free(first)
    hits = kv.lookup(make_sequence(list(range(14))))
    assert hits == [0, 1, 4]
    assert [kv.is_live(block_id) for block_id in hits] == [False, False, True]
    assert kv.num_live(hits) == 0
    assert kv.num_live(hits[2:]) == 1


def _take_a_block_twice(kv: KVCacheManager, seq: Sequence) -> None:
    kv.pool.share(seq.block_table[0])


def _lose_a_block(kv: KVCacheManager, seq: Sequence) -> None:
    seq.block_table.pop()


def _share_without_counting(kv: KVCacheManager, seq: Sequence) -> None:
    seq.block_table[1] = seq.block_table[0]


def _change_a_token(kv: KVCacheManager, seq: Sequence) -> None:
    seq.token_ids[2] = 55


def _compute_too_much(kv: KVCacheManager, seq: Sequence) -> None:
    seq.num_computed_tokens = seq.num_tokens


def _forget_computed_tokens(kv: KVCacheManager, seq: Sequence) -> None:
    seq.num_computed_tokens = 3


def _miscount_stored_tokens(kv: KVCacheManager, seq: Sequence) -> None:
    kv.pool.fill(seq.block_table[1], 1)


def _invent_a_copy(kv: KVCacheManager, seq: Sequence) -> None:
    kv.pool.blocks[0].num_pending_reads = 1


@pytest.mark.parametrize(
    ("breakage", "complaint"),
    [
        (_take_a_block_twice, "owners counted and"),
        (_lose_a_block, "owners counted and"),
        (_share_without_counting, "owners counted and"),
        (_change_a_token, "key of other tokens"),
        (_compute_too_much, "nothing left to compute"),
        (_forget_computed_tokens, "before it was computed|miscounted"),
        (_miscount_stored_tokens, "miscounted"),
        (_invent_a_copy, "reads counted"),
    ],
)
def test_check_integrity_notices(
    kv: KVCacheManager, breakage: Callable[[KVCacheManager, Sequence], None], complaint: str
) -> None:
    seq = computed(kv, list(range(6)))
    kv.check_integrity([seq])
    breakage(kv, seq)
    with pytest.raises(AssertionError, match=complaint):
        kv.check_integrity([seq])


def test_check_integrity_notices_a_block_that_is_cached_too_early(kv: KVCacheManager) -> None:
    seq = make_sequence(list(range(12)))
    compute(kv, seq, 4)
    kv.allocate_slots(seq, 8)
    kv.check_integrity([seq])
    kv.pool.fill(1, 4)
    key, tokens = seq.block_keys[0], [4, 5, 6, 7]
    kv.pool.cache(1, block_key(key, tokens), key, tokens)
    with pytest.raises(AssertionError, match="before it was computed"):
        kv.check_integrity([seq])
