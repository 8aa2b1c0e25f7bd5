"""Four- and eight-bit weights taken from GGUF blocks are the numbers those blocks mean."""

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as QuantizationType
from gguf.quants import dequantize, quantize

from engine.loader import quantized
from engine.loader.gguf_file import GGUFTensor
from engine.loader.quantized import EightBitWeight, Int4Weight, int4_from_gguf, int8_from_gguf


def make(kind: QuantizationType) -> tuple[GGUFTensor, torch.Tensor]:
    values = np.random.default_rng(1).normal(size=(6, 96)).astype(np.float32)
    raw = quantize(values, kind)
    tensor = GGUFTensor("t", kind, values.shape, raw.reshape(-1))
    return tensor, torch.from_numpy(dequantize(raw, kind))


def values_of(weight: Int4Weight) -> torch.Tensor:
    groups = weight.nibbles.view(*weight.scales.shape, 32).float() - 8
    return (groups * weight.scales[..., None] + weight.zeros[..., None]).flatten(1)


@pytest.mark.parametrize("kind", [QuantizationType.Q4_0, QuantizationType.Q4_1])
def test_four_bit_blocks(kind: QuantizationType) -> None:
    tensor, expected = make(kind)
    weight = int4_from_gguf(tensor)
    assert weight is not None
    assert torch.allclose(values_of(weight), expected, atol=1e-6)
    order = torch.tensor([5, 0, 3])
    both = Int4Weight.concatenate([weight, weight.take_rows(order)])
    assert torch.equal(values_of(both), torch.cat([values_of(weight), values_of(weight)[order]]))


def test_eight_bit_rows_are_exact() -> None:
    tensor, expected = make(QuantizationType.Q8_0)
    table = int8_from_gguf(tensor)
    assert table is not None
    rows = torch.tensor([[4, 0], [1, 1]])
    assert torch.equal(table(rows), expected[rows])


def test_other_types_stay_dense() -> None:
    tensor, _ = make(QuantizationType.Q5_0)
    assert int4_from_gguf(tensor) is None
    assert int8_from_gguf(tensor) is None


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_eight_bits_are_the_same_in_pieces(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(50, 24, generator=torch.Generator().manual_seed(0))
    whole = EightBitWeight.of(weight, dtype, torch.device("cpu"))
    monkeypatch.setattr(quantized, "PIECE_NUMBERS", 7 * 24)
    pieces = EightBitWeight.of(weight, dtype, torch.device("cpu"))
    assert pieces.numbers.dtype is dtype
    assert torch.equal(pieces.numbers.view(torch.uint8), whole.numbers.view(torch.uint8))
    assert torch.equal(pieces.scales, weight.abs().amax(1))
    rows = torch.tensor([49, 0])
    assert (whole(rows) - weight[rows]).abs().max() < 0.04 * weight.abs().max()
