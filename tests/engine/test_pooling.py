"""Sums of states: the same in any order, at length 1 in the end."""

import math

from hypothesis import given
from hypothesis import strategies as st

from engine.pooling import STATE_UNIT, StateSum

states = st.lists(
    st.tuples(*[st.integers(-(2**34), 2**34).map(lambda n: n * STATE_UNIT)] * 2),
    min_size=1,
    max_size=20,
)


def total(rows: list[tuple[float, ...]]) -> list[float]:
    return [math.fsum(column) for column in zip(*rows, strict=True)]


@given(rows=states, data=st.data())
def test_chunks_do_not_change_the_sum(rows: list[tuple[float, ...]], data: st.DataObject) -> None:
    whole, parts = StateSum(), StateSum()
    whole.add(0, len(rows), total(rows))
    start = 0
    while start < len(rows):
        size = data.draw(st.integers(1, len(rows) - start))
        parts.add(start, size, total(rows[start : start + size]))
        start += size
    assert parts.embedding() == whole.embedding()


def test_an_embedding_has_the_direction_of_the_mean_and_length_1() -> None:
    pooled = StateSum()
    pooled.add(0, 2, [1.0, 2.0])
    pooled.add(2, 1, [2.0, 2.0])
    assert pooled.embedding() == (0.6, 0.8)


def test_a_sum_from_the_first_position_on_starts_anew() -> None:
    pooled = StateSum()
    pooled.add(0, 2, [100.0, 1.0])
    pooled.add(0, 1, [0.0, 5.0])
    pooled.add(1, 1, [0.0, 2.0])
    assert pooled.embedding() == (0.0, 1.0)


def test_zeros_stay_and_what_is_not_finite_is_no_embedding() -> None:
    pooled = StateSum()
    pooled.add(0, 1, [0.0, 0.0])
    assert pooled.embedding() == (0.0, 0.0)
    for value in (math.nan, math.inf, -math.inf):
        pooled.add(0, 1, [1.0, value])
        assert pooled.embedding() is None
