"""Products: dense, four bits, eight bits, against plain arithmetic, and the same bits in every batch."""

import pytest
import torch

from engine.layers.linear import (
    DenseLinear,
    EightBitLinear,
    Int4Linear,
    Int8Linear,
    Linear,
    int4_can_hold,
)
from engine.loader.quantized import EightBitWeight, Int4Weight
from kernels.reference import quantized_linear

CPU = torch.device("cpu")


def int4_weight(out_features: int = 128, in_features: int = 96) -> Int4Weight:
    generator = torch.Generator().manual_seed(0)
    groups = (out_features, in_features // 32)
    nibbles = torch.randint(0, 16, (out_features, in_features), generator=generator)
    scales = torch.rand(groups, generator=generator) * 0.01 + 0.005
    return Int4Weight(
        nibbles.to(torch.uint8), scales, torch.randn(groups, generator=generator) * 0.01
    )


def inputs(rows: int, size: int) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(1))


def test_dense_with_bias() -> None:
    weight, bias, x = inputs(5, 7), inputs(1, 5)[0], inputs(3, 7)
    assert torch.allclose(DenseLinear(weight, bias)(x), x @ weight.T + bias, atol=1e-6)


@pytest.mark.parametrize("with_bias", [False, True])
def test_four_bits(with_bias: bool) -> None:
    weight, x = int4_weight(), inputs(9, 96).bfloat16()
    bias = inputs(1, 128)[0].bfloat16() if with_bias else None
    scales, zeros = weight.scales.bfloat16().float(), weight.zeros.bfloat16().float()
    groups = weight.nibbles.view(128, 3, 32).float() - 8
    exact = x.float() @ (groups * scales[..., None] + zeros[..., None]).flatten(1).T
    expected = exact if bias is None else exact + bias.float()
    assert (Int4Linear(weight, bias)(x).float() - expected).abs().max() < 0.01 * expected.std()


def test_eight_bits() -> None:
    weight, x = inputs(64, 96), inputs(5, 96).bfloat16()
    expected = x.float() @ weight.T
    assert (Int8Linear(weight)(x).float() - expected).abs().max() < 0.05 * expected.std()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_eight_bits_of_any_kind_with_a_scale_per_output(dtype: torch.dtype) -> None:
    weight, x, bias = inputs(64, 96), inputs(5, 96), inputs(1, 64)[0]
    weight[7] *= 1000
    layer = EightBitLinear(EightBitWeight.of(weight, dtype, CPU), quantized_linear, bias)
    expected = x @ weight.T + bias
    errors = (layer(x) - expected).abs().amax(0) / expected.abs().amax(0)
    assert errors.max() < 0.1


@pytest.mark.parametrize(
    "layer",
    [
        Int4Linear(int4_weight()),
        Int8Linear(inputs(128, 96)),
        DenseLinear(inputs(128, 96).bfloat16()),
    ],
    ids=["int4", "int8", "dense"],
)
def test_a_row_has_the_same_bits_in_every_batch(layer: Linear) -> None:
    x = inputs(70, 96).bfloat16()
    whole = layer(x)
    for rows in (1, 2, 3, 4, 5, 7, 8, 16, 33, 64):
        assert torch.equal(layer(x[:rows].contiguous()), whole[:rows])


def test_which_shapes_fit_the_packed_layout() -> None:
    assert int4_can_hold(576, 1536)
    assert not int4_can_hold(570, 1536)
    assert not int4_can_hold(576, 1540)
