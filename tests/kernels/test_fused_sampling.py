"""Draws and ranks of the fused step's threads against sorting everything in numpy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.cpu.fused.model import FusedModel, FusedShape
from kernels.cpu.fused.ranking import RANK
from kernels.cpu.fused.sampling import DRAW, UNUSABLE
from tests.kernels.fused_reference import RandomModel, needs_fused_cpu

pytestmark = needs_fused_cpu
VOCAB = 9000
NO_FLOOR = -np.inf
SHAPE = FusedShape(
    num_layers=1, hidden_size=32, intermediate_size=32, num_heads=2, num_kv_heads=1, head_dim=16,
    vocab_size=VOCAB, epsilon=1e-5, softmax_scale=0.25,
)  # fmt: skip


@pytest.fixture(scope="module")
def fused() -> Iterator[FusedModel]:
    model = RandomModel(SHAPE, seed=0).fused(num_threads=3)
    yield model
    model.close()


def record(
    *, row=0, uniform=0.5, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, mask=0
) -> tuple[float, ...]:
    floor = np.log(min_p) if min_p > 0 else NO_FLOOR
    return row, uniform, top_p, 1 / temperature if temperature else 0.0, floor, top_k, mask, 0


def draw(fused: FusedModel, logits: np.ndarray, *records: tuple[float, ...]) -> list[int]:
    return fused.draw(logits, np.array(list(records), DRAW)).tolist()


def intervals(row: np.ndarray, temperature: float, top_p: float, top_k: int, min_p: float):
    """Ends of every column's share of the unit interval, by sorting; and the ids that are kept."""
    scores = (row - row.max()) * np.float32(1 / temperature)
    weights = np.exp(scores.astype(np.float64))
    if min_p > 0:
        weights[scores < np.float32(np.log(min_p))] = 0
    if 0 < top_k < row.size:
        weights[scores < np.sort(scores)[-top_k]] = 0
    order = np.lexsort((np.arange(row.size), -scores))
    before = np.cumsum(weights[order]) - weights[order]
    dropped = order[(before >= top_p * weights.sum()) & (np.arange(row.size) > 0)]
    if top_p < 1:
        weights[dropped] = 0
    return np.cumsum(weights) / weights.sum(), set(np.flatnonzero(weights).tolist())


logits_of = st.builds(
    lambda seed, size, scale, step: (
        np.round(np.random.default_rng(seed).standard_normal((2, size)) * scale / step).astype(
            np.float32
        )
        * np.float32(step)
    ),
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 15, 16, 17, 255, 256, 257, 512, 1000, VOCAB - 1, VOCAB]),
    st.sampled_from([0.0, 0.05, 1.0, 4.0, 30.0]),
    st.sampled_from([1e-6, 0.25, 3.0]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    logits=logits_of,
    temperature=st.sampled_from([0.01, 0.3, 0.8, 1.0, 2.0]),
    top_p=st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 50, 1000, 2**31]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_draws_are_those_of_sorting(fused, logits, temperature, top_p, top_k, min_p, seed) -> None:
    """Apart from draws within 1e-5 of where one column's share ends and the next begins."""
    uniform = np.random.default_rng(seed).random(64)
    row = 1
    ends, kept = intervals(logits[row], temperature, top_p, top_k, min_p)
    asked = [
        record(row=row, uniform=u, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
        for u in uniform
    ]
    for u, column in zip(uniform, draw(fused, logits, *asked), strict=True):
        low, high = np.searchsorted(ends, [u - 1e-5, u + 1e-5], side="right")
        assert low <= column <= high
        assert column in kept


def packed(allowed: np.ndarray) -> np.ndarray:
    """Bits of columns, as a mask has them; set behind the last column, where nobody may look."""
    padded = np.ones(-(-allowed.size // 16) * 16, bool)
    padded[: allowed.size] = allowed
    return np.packbits(padded, bitorder="little")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    logits=logits_of,
    temperature=st.sampled_from([0.0, 0.01, 0.8, 2.0]),
    top_p=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    top_k=st.sampled_from([0, 0, 1, 5, 50, 2**31]),
    min_p=st.sampled_from([0.0, 0.0, 0.02]),
    density=st.sampled_from([0.0, 0.002, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_columns_that_a_mask_lacks_are_not_there(
    fused, logits, temperature, top_p, top_k, min_p, density, seed
) -> None:
    rng = np.random.default_rng(seed)
    allowed = rng.random(logits.shape[1]) < density
    allowed[rng.integers(allowed.size)] = True
    ids, bits = np.flatnonzero(allowed), packed(allowed)
    options = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    uniform = rng.random(16)
    masked = [record(row=1, uniform=u, mask=bits.ctypes.data, **options) for u in uniform]
    drawn = draw(fused, logits, *masked)
    alone = np.ascontiguousarray(logits[1:, ids])
    if temperature == 0:
        assert drawn == [ids[alone.argmax()]] * 16
        return
    ends, kept = intervals(alone[0], temperature, top_p, top_k, min_p)
    for u, column in zip(uniform, drawn, strict=True):
        low, high = np.searchsorted(ends, [u - 1e-5, u + 1e-5], side="right")
        place = int(np.searchsorted(ids, column))
        assert ids[place] == column
        assert low <= place <= high
        assert place in kept


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_hides_neither_what_is_not_finite_nor_that_nothing_is_left(
    fused: FusedModel, temperature: float
) -> None:
    logits = np.zeros((2, 600), np.float32)
    logits[1, 599] = np.nan
    few, none = packed(np.arange(600) == 7), packed(np.zeros(600, bool))
    drawn = draw(
        fused,
        logits,
        record(temperature=temperature, mask=few.ctypes.data),
        record(temperature=temperature, mask=none.ctypes.data),
        record(row=1, temperature=temperature, mask=few.ctypes.data),
    )
    assert drawn == [7, UNUSABLE, UNUSABLE]


@pytest.mark.parametrize("size", [1, 255, 256, 300, VOCAB])
def test_without_a_temperature_it_is_the_first_of_the_best(fused: FusedModel, size: int) -> None:
    logits = np.zeros((1, size), np.float32)
    logits[0, [size // 2, size - 1]] = 1
    assert draw(fused, logits, record(temperature=0.0)) == [size // 2]


def test_equal_scores_rank_by_column_in_top_p_and_stay_in_top_k(fused: FusedModel) -> None:
    logits = np.zeros((1, 600), np.float32)
    points = np.linspace(0, 1, 2000, endpoint=False)
    nucleus = draw(fused, logits, *(record(uniform=u, top_p=0.5) for u in points))
    assert set(nucleus) == set(range(300))
    best = draw(fused, logits, *(record(uniform=u, top_k=2) for u in points))
    assert set(best) == set(range(600))


def test_the_ends_of_the_unit_interval_give_columns_with_mass(fused: FusedModel) -> None:
    logits = np.full((1, 1000), -200.0, np.float32)
    logits[0, [300, 700]] = 0
    ends: list[dict[str, Any]] = [{}, {"top_k": 5}, {"top_p": 0.99}]
    for options in ends:
        assert draw(fused, logits, record(uniform=0.0, **options)) == [300]
        assert draw(fused, logits, record(uniform=1 - 2**-53, **options)) == [700]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 299, 599])
def test_a_row_that_is_not_finite_is_refused(fused: FusedModel, value: float, column: int) -> None:
    logits = np.zeros((2, 600), np.float32)
    logits[1, column] = value
    drawn = draw(fused, logits, record(temperature=0.0), record(row=1), record(row=1, top_k=3))
    assert drawn == [0, UNUSABLE, UNUSABLE]


def test_rows_do_not_feel_each_other(fused: FusedModel) -> None:
    logits = np.random.default_rng(3).standard_normal((40, VOCAB)).astype(np.float32) * 3
    kinds: list[dict[str, Any]] = [{"top_p": 0.9}, {"top_k": 40}, {}, {"temperature": 0.0}]
    asked = [record(row=i, uniform=i / 40, **kinds[i % 4]) for i in range(40)]
    together = draw(fused, logits, *asked)
    assert together == [draw(fused, logits, one)[0] for one in asked]
    assert len(set(together)) > 30


def test_what_stands_behind_the_last_column_does_not_count(fused: FusedModel) -> None:
    memory = np.full((3, 320), 1e9, np.float32)
    logits = memory[:, :300]
    logits[:] = np.random.default_rng(0).standard_normal(logits.shape)
    drawn = draw(fused, logits, *(record(row=i, temperature=0.0) for i in range(3)))
    assert drawn == logits.argmax(1).tolist()


@pytest.mark.parametrize("num_top", [0, 1, 5, 20, 300])
@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
def test_ranks_are_those_of_sorting(fused: FusedModel, num_top: int, scale: float) -> None:
    rng = np.random.default_rng(5)
    logits = np.round(rng.standard_normal((4, 1000)) * scale, 1).astype(np.float32)
    top, records = np.zeros((4, num_top), np.int32), np.zeros(4, RANK)
    records["row"], records["token"], records["num_top"] = range(4), (0, 999, 500, 1), num_top
    records["top"] = top.ctypes.data + np.arange(4) * 4 * num_top
    fused.rank(logits, records)
    for row, found, best in zip(logits, records, top, strict=True):
        order = np.lexsort((np.arange(row.size), -row))
        assert order[found["rank"] - 1] == found["token"]
        assert best.tolist() == order[:num_top].tolist()
        assert found["largest"] == row.max()
        expected = np.exp(row.astype(np.float64) - row.max()).sum()
        assert found["mass"] == pytest.approx(expected, rel=1e-6)
