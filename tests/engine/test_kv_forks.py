"""Forks and copy-on-write, and what steps and preemptions cost, by exact block ids."""

import pytest

from engine.kv_cache_manager import KVCacheManager
from engine.outputs import BlockCopy
from engine.sequence import Sequence
from tests.engine.cache_steps import compute, computed, free_ids, make_sequence, ref_counts
from tests.fakes import make_config


def fork(kv: KVCacheManager, parent: Sequence, count: int) -> list[Sequence]:
    """`count` candidates in all, each with a first token of its own."""
    children = []
    for token in range(count - 1):
        child = make_sequence(parent.request.prompt_token_ids)
        kv.fork(parent, child)
        child.append(60 + token, 0.0)
        children.append(child)
    return [parent, *children]


def test_fork_copies_the_table_and_moves_nothing(kv: KVCacheManager) -> None:
    parent = computed(kv, list(range(6)))
    before = free_ids(kv)
    _, child = fork(kv, parent, 2)
    assert child.block_table == parent.block_table == [0, 1]
    assert child.block_table is not parent.block_table
    assert (ref_counts(kv, child), child.num_computed_tokens) == ([2, 2], 6)
    assert free_ids(kv) == before
    assert (kv.pool.counts.shared, kv.pool.tokens_stored) == (2, 6)


def test_first_writers_of_a_shared_tail_copy_and_the_last_owner_keeps_it(
    kv: KVCacheManager,
) -> None:
    candidates = fork(kv, computed(kv, list(range(6))), 3)
    copies = [kv.allocate_slots(seq, 1) for seq in candidates]
    assert copies == [[BlockCopy(1, 2)], [BlockCopy(1, 3)], []]
    assert [seq.block_table for seq in candidates] == [[0, 2], [0, 3], [0, 1]]
    kv.check_integrity(candidates)
    kv.release_copies()
    for seq in candidates:
        kv.commit(seq, 1)
        seq.append(70, 0.0)
    kv.check_integrity(candidates)
    assert [ref_counts(kv, seq) for seq in candidates] == [[3, 1]] * 3
    assert kv.pool.tokens_stored == 4 + 3 * 3
    assert kv.num_cow_copies == 2


def test_tail_at_a_block_edge_needs_no_copy(kv: KVCacheManager) -> None:
    candidates = fork(kv, computed(kv, list(range(8))), 3)
    assert [kv.allocate_slots(seq, 1) for seq in candidates] == [[], [], []]
    assert [seq.block_table for seq in candidates] == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]


def test_source_of_a_copy_is_not_handed_out_before_the_step_was_executed(
    kv: KVCacheManager,
) -> None:
    first, second = fork(kv, computed(kv, list(range(6))), 2)
    assert kv.allocate_slots(first, 1) == [BlockCopy(1, 2)]
    kv.free(second)
    assert 1 not in free_ids(kv)
    kv.release_copies()
    assert 1 in free_ids(kv)


def test_copy_needs_a_block_or_nothing_happens(kv: KVCacheManager) -> None:
    first, second = fork(kv, computed(kv, list(range(38))), 2)
    assert kv.allocate_slots(first, 1) is None
    assert ref_counts(kv, first) == ref_counts(kv, second) == [2] * 10
    kv.free(second)
    assert kv.allocate_slots(first, 1) == []


def test_end_of_one_candidate_leaves_the_others_whole(kv: KVCacheManager) -> None:
    first, second = fork(kv, computed(kv, list(range(6))), 2)
    assert kv.count_shared(first) == 2
    assert kv.free(first) == 0
    assert ref_counts(kv, second) == [1, 1]
    assert kv.count_shared(second) == 0
    assert kv.free(second) == 2


@pytest.mark.parametrize("num_candidates", [1, 3])
@pytest.mark.parametrize("num_prompt", [3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("num_output", [1, 4, 5])
def test_blocks_of_candidates_follow_the_formula(
    kv: KVCacheManager, num_candidates: int, num_prompt: int, num_output: int
) -> None:
    candidates = fork(kv, computed(kv, list(range(num_prompt))), num_candidates)
    for token in range(num_output):
        for seq in candidates:
            compute(kv, seq)
            seq.append(100 + 10 * seq.seq_id + token, 0.0)
    tails = -(-(num_prompt % 4 + num_output) // 4)
    live = kv.pool.counts.private + kv.pool.counts.shared
    assert live == num_prompt // 4 + num_candidates * tails
    kv.check_integrity(candidates)


@pytest.mark.parametrize(("num_forks", "num_outside"), [(1, 0), (1, 1), (3, 0), (3, 2), (0, 0)])
@pytest.mark.parametrize("length", [3, 4, 5])
def test_fresh_blocks_foretold_are_those_taken(
    length: int, num_forks: int, num_outside: int
) -> None:
    kv = KVCacheManager(make_config(num_blocks=30))
    parent = computed(kv, list(range(length)))
    family = fork(kv, parent, 1 + num_forks + num_outside)
    others = [computed(kv, list(range(50, 54))), computed(kv, list(range(60, 63)))]
    decoding = family[: 1 + num_forks] + others
    foretold, before = kv.num_fresh_blocks(decoding), kv.pool.num_available
    for seq in decoding:
        assert kv.allocate_slots(seq, 1) is not None
    assert before - kv.pool.num_available == foretold


def test_lost_is_what_nobody_else_holds(kv: KVCacheManager) -> None:
    alone = computed(kv, list(range(10)))
    assert kv.num_lost_tokens(alone) == 10
    _, child = fork(kv, alone, 2)
    assert [kv.num_lost_tokens(seq) for seq in (alone, child)] == [2, 2]
    kv.free(child)
    assert kv.num_lost_tokens(alone) == 10


def test_all_is_lost_without_a_prefix_cache() -> None:
    kv = KVCacheManager(make_config(enable_prefix_caching=False))
    alone = computed(kv, list(range(10)))
    fork(kv, alone, 2)
    assert kv.num_lost_tokens(alone) == 10


@pytest.mark.parametrize(
    ("length", "num_followers", "missing"), [(3, 0, 1), (4, 0, 2), (4, 2, 4), (39, 5, 10)]
)
def test_missing_blocks_count_one_more_token_and_a_tail_per_follower(
    kv: KVCacheManager, length: int, num_followers: int, missing: int
) -> None:
    seq = make_sequence(list(range(length)))
    seq.followers = [make_sequence(list(range(length))) for _ in range(num_followers)]
    assert kv.num_missing_blocks(seq) == missing
    kv.allocate_slots(seq, 3)
    assert kv.num_missing_blocks(seq) == missing - 1


def test_missing_blocks_count_only_what_followers_do_not_share(kv: KVCacheManager) -> None:
    leader = make_sequence(list(range(10)))
    for position in (9, 8, 7):
        follower = make_sequence(list(range(10)))
        follower.fork_position = position
        leader.followers.append(follower)
    assert kv.num_missing_blocks(leader) == 3 + 1 + 1 + 2


def test_a_fork_takes_the_keys_of_what_is_computed_only(kv: KVCacheManager) -> None:
    parent, child = make_sequence(list(range(12))), make_sequence([*range(6), *range(50, 56)])
    kv.lookup(parent)
    compute(kv, parent, 6)
    assert len(parent.block_keys) == 2
    kv.fork(parent, child)
    assert child.block_keys == parent.block_keys[:1]
    compute(kv, child)
    compute(kv, parent)
    for seq in (parent, child):
        seq.append(99, 0.0)
    kv.check_integrity([parent, child])
    assert child.block_keys[1] != parent.block_keys[1]


def test_stored_tokens_of_several_sequences_count_once(kv: KVCacheManager) -> None:
    parent, child = computed(kv, list(range(6))), make_sequence(list(range(6)))
    kv.fork(parent, child)
    child.append(98, 0.0)
    assert kv.num_stored_tokens([parent, child]) == 6
    compute(kv, child)
    assert kv.num_stored_tokens([parent, child]) == 4 + 2 + 3
