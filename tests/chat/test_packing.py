"""Bucket counts come back whole, and sparse ones are short."""

from hypothesis import given
from hypothesis import strategies as st

from chat.packing import pack_counts, unpack_counts


@given(st.lists(st.integers(0, 2**50), max_size=200))
def test_counts_come_back(counts: list[int]) -> None:
    assert unpack_counts(pack_counts(tuple(counts)), len(counts)) == tuple(counts)


def test_sparse_counts_are_short() -> None:
    counts = (0,) * 60 + (5, 300) + (0,) * 80 + (1,)
    assert pack_counts(counts) == bytes([61, 5, 1, 0xAC, 2, 81, 1])
    assert pack_counts((0,) * 150) == b""


def test_fewer_buckets_drop_the_rest() -> None:
    assert unpack_counts(pack_counts((1, 0, 3)), 2) == (1, 0)
