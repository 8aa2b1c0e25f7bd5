"""Every kernel of the fused step by itself, called by address, against numpy; memory ends at pages that cannot be read."""

from ctypes import c_float, c_int64

import numpy as np
import pytest

from kernels.cpu.fused import packing
from kernels.cpu.fused.linear import MAX_TILE_ROWS
from kernels.cpu.fused.quantize import RECORD_BYTES
from tests.kernels.fused_reference import aligned, kernel_function, needs_fused_cpu, quantize_4
from tests.kernels.guarded_pages import GuardedPages

pytestmark = needs_fused_cpu
WORDS = RECORD_BYTES // 4


def normal(*size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers [M, K] int8, settled records [M, K/32] of WORDS, and the values they stand for [M, K]."""
    num_groups = x.shape[1] // 32
    numbers = aligned(x.shape, np.int8)
    records = aligned((len(x), num_groups, WORDS), np.float32)
    quantize = kernel_function("quantize_row", *[c_int64] * 4)
    settle = kernel_function("settle_row", *[c_int64] * 2)
    for row in range(len(x)):
        record = records[row].ctypes.data
        quantize(x[row].ctypes.data, numbers[row].ctypes.data, record, num_groups)
        settle(record, num_groups)
    return numbers, records, dequantised(numbers, records)


def halves(numbers: np.ndarray) -> np.ndarray:
    """Stored numbers [..., K] as [..., K/32, 2, 16]: words of the first and of the last 16 stand by turns."""
    words = numbers.reshape(*numbers.shape[:-1], -1, 4, 2, 4)
    return words.swapaxes(-3, -2).reshape(*words.shape[:-3], 2, 16)


def dequantised(numbers: np.ndarray, records: np.ndarray) -> np.ndarray:
    """The values that numbers [..., K] stand for, by the two scales of each record."""
    return (halves(numbers) * records[..., :2, None]).reshape(numbers.shape)


def factors_of(records: np.ndarray) -> np.ndarray:
    """The two factors of each record."""
    return records.view(np.int16)[..., 8:10]


def test_quantising_rounds_to_the_nearest_of_127_steps() -> None:
    x = normal(3, 96)
    x[1, 32:64] = 0
    numbers, records, values = quantised(x)
    groups = x.reshape(3, 3, 2, 16)
    scale = np.abs(groups).max(-1) / 127
    np.testing.assert_allclose(records[:, :, :2], scale, rtol=1e-6)
    assert (np.abs(values.reshape(groups.shape) - groups) <= scale[..., None] * 0.501).all()
    sums = halves(numbers).astype(int).sum(-1)
    np.testing.assert_array_equal(records.view(np.int32)[:, :, 2:4], -128 * sums)


def test_a_settled_row_has_its_scales_as_multiples_of_a_unit() -> None:
    x = normal(3, 96) * np.repeat([1, 1e-3, 1e3], 32).astype(np.float32)
    x[1] = 0
    numbers, records, _ = quantised(x)
    factors, unit = factors_of(records).astype(int), records[:, 0, 6]
    scale = records[:, :, :2]
    np.testing.assert_allclose(unit, scale.max((1, 2)) / 32767, rtol=1e-6)
    assert list(factors.max((1, 2))) == [32767, 0, 32767]
    assert (np.abs(factors * unit[:, None, None] - scale) <= unit[:, None, None] * 0.51).all()
    sums = (factors * halves(numbers).astype(int).sum(-1)).sum(-1)
    np.testing.assert_array_equal(records[:, :, 5], sums.astype(np.float32))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_rows", range(1, MAX_TILE_ROWS + 1))
def test_tiles_multiply_exactly_what_was_quantised(bits: int, num_rows: int) -> None:
    pages, num_inputs = GuardedPages(), 96
    weights = normal(32, num_inputs, seed=1)
    groups = quantize_4(weights) if bits == 4 else packing.from_float(weights)
    block = aligned((packing.packed_size(groups),), np.uint8)
    packing.pack(groups, block)
    block = pages.copy(block)
    numbers, records, values = quantised(normal(num_rows, num_inputs))
    numbers, records = pages.copy(numbers), pages.copy(records)
    out = pages.copy(np.full((num_rows, 32), np.nan, np.float32))
    tile = kernel_function(f"tile_{bits}_{num_rows}", *[c_int64] * 12)
    stride = num_inputs // 32 * RECORD_BYTES
    tile(numbers.ctypes.data, num_inputs, records.ctypes.data, stride, block.ctypes.data,
         num_inputs // 32, out.ctypes.data, 128, 4096, 64, 1 << 40, 4096)  # fmt: skip
    if bits == 4:
        factors = factors_of(records) * records[:, :1, 6:]
        values = (halves(numbers) * factors[..., None]).reshape(values.shape)
    np.testing.assert_allclose(out, values @ packing.to_float(groups).T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_dots_of_4_bits_do_not_overflow(sign: int) -> None:
    """Every number 127 and every nibble 15, both groups' factors the largest there are."""
    weights = packing.Groups4(
        np.full((32, 1, 4), 2**32 - 1, np.uint32), *np.ones((2, 32, 1), np.float16)
    )
    block = aligned((packing.packed_size(weights),), np.uint8)
    packing.pack(weights, block)
    numbers, records, _ = quantised(np.full((1, 32), sign, np.float32))
    assert (np.abs(numbers) == 127).all()
    out = np.zeros((1, 32), np.float32)
    kernel_function("tile_4_1", *[c_int64] * 12)(
        numbers.ctypes.data, 32, records.ctypes.data, RECORD_BYTES, block.ctypes.data, 1,
        out.ctypes.data, 128, 0, 0, 0, 0)  # fmt: skip
    np.testing.assert_allclose(out, sign * 16 * 32, rtol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_is_the_same_in_every_tile(bits: int) -> None:
    weights = normal(32, 64, seed=1)
    groups = quantize_4(weights) if bits == 4 else packing.from_float(weights)
    block = aligned((packing.packed_size(groups),), np.uint8)
    packing.pack(groups, block)
    numbers, records, _ = quantised(np.repeat(normal(1, 64), MAX_TILE_ROWS, axis=0))
    rows = []
    for num_rows in range(1, MAX_TILE_ROWS + 1):
        out = np.zeros((num_rows, 32), np.float32)
        tile = kernel_function(f"tile_{bits}_{num_rows}", *[c_int64] * 12)
        tile(numbers.ctypes.data, 64, records.ctypes.data, 2 * RECORD_BYTES, block.ctypes.data, 2,
             out.ctypes.data, 128, 0, 0, 0, 0)  # fmt: skip
        rows.extend(row.tobytes() for row in out)
    assert len(set(rows)) == 1


def test_norm_adds_what_is_pending_and_scales() -> None:
    pages = GuardedPages()
    x, delta, weight = (pages.copy(normal(64, seed=seed)) for seed in range(3))
    numbers, records = (
        pages.copy(np.zeros(64, np.int8)),
        pages.copy(np.zeros((2, WORDS), np.float32)),
    )
    total = x + delta
    norm = kernel_function("add_norm_quantize", *[c_int64] * 6, c_float)
    arrays = (x, delta, weight, numbers, records)
    norm(*(array.ctypes.data for array in arrays), 2, 1e-5)
    np.testing.assert_array_equal(x, total)
    expected = total / np.sqrt((total**2).mean() + 1e-5) * weight
    values = dequantised(numbers, records)
    np.testing.assert_allclose(values, expected, atol=np.abs(expected).max() / 127 * 0.51)


def test_silu_multiply_handles_large_gates() -> None:
    gate = np.array(
        [0, 1, -1, 5, -5, 30, -30, 85, -85, 120, -120, 500, -500, 1e-6, -1e-6, 2], np.float32
    )
    up = np.full(16, 2, np.float32)
    source = np.concatenate([gate, up, normal(16), normal(16)]).astype(np.float32)
    numbers, records = aligned((32,), np.int8), aligned((1, WORDS), np.float32)
    kernel_function("silu_multiply_quantize", *[c_int64] * 4)(
        source.ctypes.data, numbers.ctypes.data, records.ctypes.data, 1
    )
    expected = gate / (1 + np.exp(-gate.astype(np.float64))) * 2
    np.testing.assert_allclose(
        halves(numbers)[0, 0] * records[0, 0], expected, atol=1000 / 127 * 0.51
    )


@pytest.mark.parametrize("num_valid", [1, 15, 16, 17, 35, 47, 48])
def test_softmax_ignores_what_is_behind_the_last_key(num_valid: int) -> None:
    weights, state, scores = weighed(num_valid)
    expected = np.exp(scores - scores.max())
    values = (weights.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(values[:num_valid], expected, rtol=2**-8, atol=1e-30)
    assert (values[num_valid:] == 0).all()
    np.testing.assert_allclose(state, [scores.max(), expected.sum()], rtol=1e-5)


def test_softmax_weighs_a_key_the_same_in_a_whole_tile_and_in_the_last() -> None:
    (short, _, _), (long, _, _) = weighed(31), weighed(32)
    np.testing.assert_array_equal(short[:31], long[:31])


def weighed(num_valid: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """bfloat16 weights [48] as bits, the state (m, s), and the scores that count, of which the first is the largest."""
    pages = GuardedPages()
    scores = np.full(48, np.nan, np.float32)
    scores[:num_valid] = normal(num_valid) * 10
    scores[0] = 40
    weights = pages.copy(np.full(48, 0x7FC0, np.uint16))
    state, guarded = pages.copy(np.zeros(2, np.float32)), pages.copy(scores)
    kernel_function("softmax", *[c_int64] * 5)(
        guarded.ctypes.data, num_valid, 3, weights.ctypes.data, state.ctypes.data
    )
    return weights, state, scores[:num_valid]


@pytest.mark.parametrize("head_dim", [64, 80, 112, 128])
def test_rotation_turns_pairs_by_their_angle(head_dim: int) -> None:
    half, pages = head_dim // 2, GuardedPages()
    values, angles = pages.copy(normal(head_dim)), normal(half, seed=1)
    cos, sin = pages.copy(np.cos(angles)), pages.copy(np.sin(angles))
    pairs = pages.copy(np.zeros(half, np.uint32))
    rotate = kernel_function("rotate_to_pairs", *[c_int64] * 4, c_float, c_int64)
    rotate(values.ctypes.data, cos.ctypes.data, sin.ctypes.data, half, 0.5, pairs.ctypes.data)
    turned = (values[:half] + 1j * values[half:]) * np.exp(1j * angles) * 0.5
    stored = [(pairs << 16).view(np.float32), (pairs & 0xFFFF0000).view(np.float32)]
    np.testing.assert_allclose(stored, [turned.real, turned.imag], rtol=2**-8, atol=1e-6)


def test_a_value_lane_leaves_its_neighbour_alone() -> None:
    pages = GuardedPages()
    row, values = pages.copy(np.full(32, 0x11112222, np.uint32)), normal(32)
    store = kernel_function("store_value_lane", *[c_int64] * 4)
    store(values.ctypes.data, row.ctypes.data, 1, 2)
    assert (row & 0xFFFF == 0x2222).all()
    np.testing.assert_allclose((row & 0xFFFF0000).view(np.float32), values, rtol=2**-8)
    high = row >> 16
    store(values.ctypes.data, row.ctypes.data, 0, 2)
    np.testing.assert_array_equal(row >> 16, high)
    np.testing.assert_allclose((row << 16).view(np.float32), values, rtol=2**-8)
    kernel_function("clear_value_lane", *[c_int64] * 2)(row.ctypes.data, 2)
    assert (row >> 16 == 0).all()
    assert (row & 0xFFFF != 0).any()


def test_a_query_keeps_15_bits_of_every_pair() -> None:
    pages, rotated = GuardedPages(), normal(64) * 3
    largest = np.abs(rotated).max(keepdims=True)
    words, factor = pages.copy(np.zeros(32, np.uint32)), pages.copy(np.zeros(1, np.float32))
    guarded = pages.copy(rotated)
    kernel_function("pack_query", *[c_int64] * 5)(
        guarded.ctypes.data, 32, largest.ctypes.data, words.ctypes.data, factor.ctypes.data
    )
    pairs = words.view(np.int16).reshape(32, 2).T.reshape(-1) * factor
    np.testing.assert_allclose(pairs, rotated, atol=float(largest[0]) / 32767 * 0.51)


def bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("size", [1.0, 1e-3, 300.0, 0.0])
def test_a_key_of_8_bits_has_a_scale_of_its_own(size: float) -> None:
    pages, rotated = GuardedPages(), normal(64) * np.float32(size)
    largest = np.abs(rotated).max(keepdims=True)
    words, scale = pages.copy(np.zeros(32, np.uint16)), pages.copy(np.zeros(1, np.uint16))
    guarded = pages.copy(rotated)
    kernel_function("pack_key", *[c_int64] * 5)(
        guarded.ctypes.data, 32, largest.ctypes.data, words.ctypes.data, scale.ctypes.data
    )
    step = float(bf16(scale)[0])
    assert step == pytest.approx(float(largest[0]) / 127, rel=2**-8)
    pairs = words.view(np.int8).reshape(32, 2).T.reshape(-1) * step
    np.testing.assert_allclose(pairs, rotated, atol=step * 0.51)


@pytest.mark.parametrize("lane", [0, 1])
def test_a_value_of_8_bits_leaves_its_neighbour_alone(lane: int) -> None:
    pages, values = GuardedPages(), normal(48)
    row = pages.copy(np.full((48, 2), 77, np.int8))
    scale, guarded = pages.copy(np.zeros(1, np.uint16)), pages.copy(values)
    kernel_function("pack_value", *[c_int64] * 5)(
        guarded.ctypes.data, 3, row.ctypes.data, lane, scale.ctypes.data
    )
    step = float(bf16(scale)[0])
    np.testing.assert_allclose(row[:, lane] * step, values, atol=step * 0.51)
    assert (row[:, 1 - lane] == 77).all()


def test_softmax_of_8_bits_weighs_by_the_scales_of_values() -> None:
    """Tiles 2, 0 and 1 of a pool; scores and scales behind the last key are anything."""
    pages = GuardedPages()
    scores = np.full(48, np.nan, np.float32)
    scores[:35] = normal(35) * 3
    pool = np.full((3, 16), 0x7FC0, np.uint16)
    scales = np.abs(normal(48, seed=2)) + np.float32(0.1)
    bits = (scales.view(np.uint32) >> 16).astype(np.uint16)
    bits[35:] = 0x7FC0
    table = np.array([2, 0, 1])
    pool[table] = bits.reshape(3, 16)
    weights = pages.copy(np.full(48, -1, np.int16))
    state, factor = pages.copy(np.zeros(2, np.float32)), pages.copy(np.zeros(1, np.float32))
    guarded, pool, place = pages.copy(scores), pages.copy(pool), 4096
    tiles = pages.copy(pool.ctypes.data + 32 * table - place)
    kernel_function("softmax_int8", *[c_int64] * 8)(
        guarded.ctypes.data, 35, tiles.ctypes.data, 3, place,
        *(array.ctypes.data for array in (weights, state, factor)),
    )  # fmt: skip
    powers = np.exp(scores[:35] - scores[:35].max())
    expected = powers * bf16(bits[:35])
    np.testing.assert_allclose(
        weights[:35] * factor, expected, rtol=1e-5, atol=expected.max() / 32767 * 0.51
    )
    assert (weights[35:] == 0).all()
    np.testing.assert_allclose(state, [scores[:35].max(), powers.sum()], rtol=1e-5)
