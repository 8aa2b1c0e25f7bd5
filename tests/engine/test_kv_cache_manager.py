"""Block tables on ten blocks of four tokens: prefix hits, slots, copy-on-write, forks; exact ids throughout."""

import itertools
from collections.abc import Callable

import pytest

from engine.kv_cache_manager import KVCacheManager, block_key, root_key
from engine.outputs import BlockCopy
from engine.prefix_cache import PartHit
from engine.sampling_params import SamplingParams
from engine.sequence import Request, Sequence
from tests.fakes import make_config

SEQ_IDS = itertools.count()


@pytest.fixture
def kv() -> KVCacheManager:
    return KVCacheManager(make_config())


def make_sequence(tokens: list[int], salt: str | None = None) -> Sequence:
    seq_id = next(SEQ_IDS)
    request = Request(seq_id, tokens, SamplingParams(cache_salt=salt), 0.0)
    return Sequence(seq_id, request, 0, 100, frozenset())


def compute(kv: KVCacheManager, seq: Sequence, num_tokens: int | None = None) -> list[BlockCopy]:
    """A step that computes `num_tokens` (or all) of what is left."""
    num_tokens = num_tokens or seq.num_uncomputed_tokens
    copies = kv.allocate_slots(seq, num_tokens)
    assert copies is not None
    kv.release_copies()
    kv.commit(seq, num_tokens)
    return copies


def computed(kv: KVCacheManager, tokens: list[int], salt: str | None = None) -> Sequence:
    """A sequence whose tokens are all in the pool; a next token is known."""
    seq = make_sequence(tokens, salt)
    compute(kv, seq)
    seq.append(99, 0.0)
    return seq


def free_ids(kv: KVCacheManager) -> list[int]:
    return [block.block_id for block in kv.pool.free_queue]


def ref_counts(kv: KVCacheManager, seq: Sequence) -> list[int]:
    return [kv.pool.blocks[i].ref_count for i in seq.block_table]


# --- slots ---------------------------------------------------------------------------------------


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


def test_freed_table_returns_in_reverse_so_that_its_tail_is_evicted_first(
    kv: KVCacheManager,
) -> None:
    seq = computed(kv, list(range(13)))
    assert kv.free(seq) == 4
    assert free_ids(kv) == [3, 4, 5, 6, 7, 8, 9, 2, 1, 0]
    assert (seq.block_table, seq.num_computed_tokens) == ([], 0)


# --- prefix cache --------------------------------------------------------------------------------


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


# --- cached blocks in part -----------------------------------------------------------------------


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


# --- fork and copy-on-write ----------------------------------------------------------------------


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


# --- integrity -----------------------------------------------------------------------------------


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


# --- what a step and a preemption cost -----------------------------------------------------------


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
