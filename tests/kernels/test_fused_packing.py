"""Packing: GGUF's 4-bit and 8-bit groups survive bit by bit, and what is rounded is rounded by at most half a step."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as QuantizationType
from gguf.quants import dequantize, quantize

from kernels.cpu.fused import packing
from kernels.cpu.fused.weights import PackedMemory, gate_up_columns, qkv_bias, qkv_columns

EXACT = {
    QuantizationType.Q4_0: packing.from_q4_0,
    QuantizationType.Q4_1: packing.from_q4_1,
    QuantizationType.Q5_0: packing.from_q5_0,
    QuantizationType.Q8_0: packing.from_q8_0,
}


def random_weights(num_outputs: int, num_inputs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_outputs, num_inputs)).astype(np.float32)


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
def test_gguf_groups_are_exact(kind: QuantizationType) -> None:
    stored = quantize(random_weights(32, 96), kind)
    groups = EXACT[kind](stored)
    np.testing.assert_array_equal(packing.to_float(groups), dequantize(stored, kind))


def test_q4_k_keeps_its_numbers_and_nearly_its_scales() -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (32, 3, 144), dtype=np.uint8)
    factors = np.random.default_rng(1).uniform(1e-3, 2e-3, (32, 3, 2)).astype(np.float16)
    blocks[..., :4] = factors.view(np.uint8)
    stored = blocks.reshape(32, -1)
    expected = dequantize(stored, QuantizationType.Q4_K)
    groups = packing.from_q4_k(stored)
    largest = (np.abs(expected).max() + factors.max() * 63) * 2.0**-11
    np.testing.assert_allclose(packing.to_float(groups), expected, atol=largest)
    numbers = np.rint(
        (expected.reshape(32, 24, 32) - groups.minimum[..., None].astype(np.float32))
        / np.where(groups.scale > 0, groups.scale, 1)[..., None].astype(np.float32)
    )
    packed = np.ascontiguousarray(groups.words).view(np.uint8)
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=2)
    has_scale = groups.scale > 0
    np.testing.assert_array_equal(nibbles[has_scale], numbers[has_scale])


def test_rounding_to_4_bits_is_better_than_ggufs() -> None:
    weights = random_weights(64, 256)
    stored = quantize(weights, QuantizationType.Q4_1)
    theirs = packing.to_float(packing.from_q4_1(stored)) - weights
    ours = packing.to_float(packing.from_float_4(weights)) - weights
    assert np.square(ours).mean() < 0.97 * np.square(theirs).mean()


@pytest.mark.parametrize("value", [0.0, 1.0, -0.37, 1e-12, 300.0])
def test_equal_weights_of_4_bits_stay_what_they_are(value: float) -> None:
    weights = np.full((16, 64), value, np.float32)
    np.testing.assert_allclose(
        packing.to_float(packing.from_float_4(weights)), weights, rtol=2**-11, atol=1e-7
    )


def test_rounding_to_8_bits_is_within_half_a_step() -> None:
    weights = random_weights(16, 64)
    groups = packing.from_float(weights)
    step = np.repeat(groups.scale.astype(np.float32), 32, axis=1)
    # The scale is rounded to float16, so the largest weight may be cut by a little more.
    assert (np.abs(packing.to_float(groups) - weights) <= step * 0.57).all()


def test_zero_and_tiny_groups_stay_finite() -> None:
    weights = np.zeros((16, 64), np.float32)
    weights[1, :32] = 1e-12
    assert (packing.to_float(packing.from_float(weights)) == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_numbers_are_refused(bad: float) -> None:
    weights = random_weights(16, 64)
    weights[3, 40] = bad
    for convert in (packing.from_float, packing.from_float_4):
        with pytest.raises(ValueError, match="not a finite number"):
            convert(weights)


def test_gate_and_up_alternate_by_16() -> None:
    gate, up = (packing.from_float(random_weights(32, 32, seed)) for seed in (1, 2))
    (mixed,) = gate_up_columns(gate, up)
    values = packing.to_float(mixed).reshape(2, 2, 16, 32)
    np.testing.assert_array_equal(values[:, 0].reshape(32, 32), packing.to_float(gate))
    np.testing.assert_array_equal(values[:, 1].reshape(32, 32), packing.to_float(up))


def test_gate_and_up_of_different_kinds_both_become_8_bits() -> None:
    stored = quantize(random_weights(32, 32, 1), QuantizationType.Q4_1)
    (mixed,) = gate_up_columns(
        packing.from_q4_1(stored), packing.from_float(random_weights(32, 32))
    )
    assert isinstance(mixed, packing.Groups8)


def test_heads_are_padded_to_whole_units() -> None:
    q, k = (packing.from_float(random_weights(n, 32)) for n in (3 * 80, 80))
    parts = qkv_columns(q, k, k, 160)
    assert [len(part.scale) for part in parts] == [320, 160, 160]
    assert (packing.to_float(parts[0])[240:] == 0).all()
    bias = qkv_bias([np.ones(240), np.ones(80), np.ones(80)], 160)
    assert bias.sum() == 400
    assert (bias[240:320] == 0).all()


def test_tables_give_address_and_kind_of_each_block() -> None:
    memory = PackedMemory()
    four = packing.from_q4_1(quantize(random_weights(64, 32), QuantizationType.Q4_1))
    eight = packing.from_float(random_weights(32, 32))
    table = memory.add([four, eight])
    assert [entry % 64 for entry in table] == [0, 0, 1]
    assert table[1] - table[0] == 640
    assert memory.num_bytes == 2 * 640 + 1088
