"""Cached blocks that agree with a sequence in part: copied up to where it leaves them."""

import pytest

from engine.kv_cache_manager import KVCacheManager
from engine.outputs import BlockCopy
from engine.prefix_cache import PartHit
from engine.sequence import Sequence
from tests.engine.cache_steps import compute, computed, free_ids, make_sequence, ref_counts
from tests.fakes import make_config


def take_part(kv: KVCacheManager, seq: Sequence) -> BlockCopy | None:
    """Attach what the cache has, whole and in part; the copy that the part takes."""
    hits = kv.lookup(seq)
    part = kv.lookup_part(seq, hits)
    kv.attach(seq, hits)
    return kv.attach_part(seq, part) if part else None


@pytest.mark.parametrize("position", range(12))
def test_tokens_up_to_where_a_sequence_leaves_a_cached_chain_are_taken(
    kv: KVCacheManager, position: int
) -> None:
    kv.free(computed(kv, list(range(12))))
    seq = make_sequence([*range(position), 99, 98])
    copy = take_part(kv, seq)
    num_whole, num_part = divmod(position, 4)
    assert copy == (BlockCopy(num_whole, 3) if num_part else None)
    assert seq.block_table == [0, 1, 2][:num_whole] + [3] * bool(num_part)
    assert seq.num_computed_tokens == position
    kv.check_integrity([seq])
    compute(kv, seq)
    seq.append(97, 0.0)
    kv.check_integrity([seq])


@pytest.mark.parametrize("length", [2, 3, 4, 5, 8, 9, 12])
def test_all_but_one_token_of_a_known_prompt_are_taken(kv: KVCacheManager, length: int) -> None:
    kv.free(computed(kv, list(range(12))))
    seq = make_sequence(list(range(length)))
    take_part(kv, seq)
    assert seq.num_computed_tokens == length - 1


def test_source_of_a_part_is_referenced_until_the_step_is_over(kv: KVCacheManager) -> None:
    kv.free(computed(kv, list(range(8))))
    seq = make_sequence([0, 1, 2, 3, 4, 5, 99])
    assert take_part(kv, seq) == BlockCopy(1, 2)
    assert free_ids(kv) == [3, 4, 5, 6, 7, 8, 9]
    assert (kv.pool.blocks[1].ref_count, kv.is_live(1)) == (1, True)
    kv.allocate_slots(seq, 1)
    kv.check_integrity([seq])
    kv.release_copies()
    kv.commit(seq, 1)
    seq.append(98, 0.0)
    assert free_ids(kv) == [3, 4, 5, 6, 7, 8, 9, 1]
    kv.check_integrity([seq])
    kv.free(seq)
    assert free_ids(kv) == [2, 3, 4, 5, 6, 7, 8, 9, 1, 0]


def test_part_of_a_live_block_is_taken_too(kv: KVCacheManager) -> None:
    owner = computed(kv, list(range(8)))
    seq = make_sequence([0, 1, 2, 3, 4, 5, 99])
    assert take_part(kv, seq) == BlockCopy(1, 2)
    compute(kv, seq)
    assert (owner.block_table, seq.block_table) == ([0, 1], [0, 2])
    assert (ref_counts(kv, owner), ref_counts(kv, seq)) == ([2, 1], [2, 1])


def test_block_that_agrees_the_longest_is_copied(kv: KVCacheManager) -> None:
    for tokens in ([5, 1, 1, 1], [5, 6, 1, 1], [5, 6, 7, 1], [5, 6, 9, 9]):
        kv.free(computed(kv, tokens))
    assert take_part(kv, make_sequence([5, 6, 7, 8])) == BlockCopy(2, 4)


def test_part_needs_the_same_beginning_and_the_same_salt(kv: KVCacheManager) -> None:
    kv.free(computed(kv, [1, 2, 3, 4, 5, 6, 7, 8], salt="a"))
    for tokens, salt in [([1, 2, 3, 9], None), ([1, 2, 3, 9], "b"), ([5, 6, 7, 9], "a")]:
        seq = make_sequence(tokens, salt)
        assert kv.lookup_part(seq, kv.lookup(seq)) is None


def test_block_is_found_in_part_only_after_the_step_that_wrote_it(kv: KVCacheManager) -> None:
    writer, reader = make_sequence(list(range(5))), make_sequence([0, 1, 2, 99])
    kv.allocate_slots(writer, 5)
    assert kv.lookup_part(reader, []) is None
    kv.commit(writer, 5)
    assert kv.lookup_part(reader, []) == PartHit(0, 3)


def test_evicted_block_is_not_found_in_part(kv: KVCacheManager) -> None:
    kv.free(computed(kv, list(range(4))))
    computed(kv, list(range(100, 140)))
    assert kv.lookup_part(make_sequence([0, 1, 2, 99]), []) is None


def test_without_prefix_caching_nothing_is_found_in_part() -> None:
    kv = KVCacheManager(make_config(enable_prefix_caching=False))
    kv.free(computed(kv, list(range(9))))
    assert kv.lookup_part(make_sequence([0, 1, 2, 99]), []) is None
