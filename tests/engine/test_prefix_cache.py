"""Which block agrees the longest, by hand and against all of them; what is removed is found no more."""

import random
from collections.abc import Sequence

import pytest

from engine.prefix_cache import PrefixCache, pack

PARENT = b"parent"


def cache_of(*runs: Sequence[int]) -> PrefixCache:
    """Blocks 0, 1, ... of these tokens behind PARENT."""
    cache = PrefixCache()
    for block_id, tokens in enumerate(runs):
        cache.add(block_id, repr(list(tokens)).encode(), PARENT, pack(tokens))
    return cache


def find(cache: PrefixCache, tokens: list[int]) -> tuple[int, int] | None:
    hit = cache.find_part(PARENT, pack(tokens))
    return None if hit is None else (hit.block_id, hit.num_tokens)


FOUR = ([1, 2, 3, 4], [1, 2, 7, 8], [1, 5, 5, 5], [9, 9, 9, 9])


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 7, 0], (1, 3)),
        ([1, 2, 3, 5], (0, 3)),
        ([1, 2, 3], (0, 3)),
        ([1, 5], (2, 2)),
        ([9, 0, 0, 0], (3, 1)),
        ([1], (0, 1)),
        ([1, 2, 5, 5], (0, 2)),
        ([8, 9, 9, 9], None),
        ([], None),
    ],
)
def test_longest_agreement_is_found(tokens: list[int], expected: tuple[int, int] | None) -> None:
    assert find(cache_of(*FOUR), tokens) == expected


def test_of_equal_agreements_the_first_in_order_wins_however_they_came() -> None:
    one, other = [1, 2, 3, 4], [1, 2, 7, 8]
    assert find(cache_of(one, other), [1, 2, 5]) == (0, 2)
    assert find(cache_of(other, one), [1, 2, 5]) == (1, 2)


@pytest.mark.parametrize("token", [255, 256, 65_535, 2**31])
def test_a_token_agrees_as_a_whole_or_not_at_all(token: int) -> None:
    cache = cache_of([1, token, 3, 4])
    assert find(cache, [1, token + 1, 3, 4]) == (0, 1)
    assert find(cache, [1, token, 3]) == (0, 3)


def test_nothing_is_found_behind_another_parent() -> None:
    assert cache_of(*FOUR).find_part(b"other", pack([1, 2, 3])) is None


def test_what_is_removed_is_found_no_more_and_costs_nothing() -> None:
    cache = cache_of(*FOUR)
    cache.remove(repr([1, 2, 3, 4]).encode())
    assert find(cache, [1, 2, 3, 4]) == (1, 2)
    assert cache.find(repr([1, 2, 3, 4]).encode()) is None
    for tokens in FOUR[1:]:
        cache.remove(repr(tokens).encode())
    assert len(cache) == 0
    assert cache._block_ids == cache._places == cache._children == {}


def test_bisection_finds_as_much_as_looking_at_every_block() -> None:
    draw = random.Random(0)
    runs = {tuple(draw.choices((1, 2, 300), k=6)) for _ in range(200)}
    cache = cache_of(*runs)
    cache.check_integrity()
    for _ in range(500):
        wanted = draw.choices((1, 2, 300), k=draw.randint(0, 6))
        longest = max(_num_same(wanted, run) for run in runs)
        hit = cache.find_part(PARENT, pack(wanted))
        assert (hit.num_tokens if hit else 0) == longest
        assert hit is None or _num_same(wanted, list(runs)[hit.block_id]) == longest


def _num_same(ours: Sequence[int], theirs: tuple[int, ...]) -> int:
    same = [tuple(ours[:i]) == theirs[:i] for i in range(1, len(ours) + 1)]
    return sum(same)
