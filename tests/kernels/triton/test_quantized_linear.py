"""Products with weights of eight bits on the GPU backend: tiles and their edges, splits of the inputs, many rows."""

import pytest
import torch

from kernels import reference
from kernels.eight_bits import quantize
from kernels.triton import quantized_linear as module
from kernels.triton.chip import H200, MI300X
from kernels.triton.quantized_linear import MOST_ROWS, choose_split, quantized_linear

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.int8, torch.float8_e4m3fn]


def make(
    size_in: int, size_out: int, num_rows: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows (of a wider tensor), a weight and a bias."""
    generator = torch.Generator().manual_seed(size_in + num_rows)
    x = torch.randn((num_rows, size_in + 8), generator=generator).to(dtype)[:, :size_in]
    weight = torch.randn((size_out, size_in), generator=generator)
    weight *= torch.rand((size_out, 1), generator=generator)
    return x, weight, torch.randn(size_out, generator=generator).to(dtype)


def assert_equal_to_reference(
    x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None = None
) -> torch.Tensor:
    numbers, scales = quantize(weight, dtype)
    there = None if bias is None else bias.to(DEVICE)
    actual = quantized_linear(x.to(DEVICE), numbers.to(DEVICE), scales.to(DEVICE), there).cpu()
    assert actual.dtype is x.dtype
    expected = reference.quantized_linear(x, numbers, scales, bias)
    tolerance = 1e-4 if x.dtype is torch.float32 else 4e-3
    scale = expected.float().abs().max() if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * float(scale))
    return actual


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [0, 1, 3, 16, 17, 65])
@pytest.mark.parametrize(("size_in", "size_out"), [(64, 64), (72, 130), (600, 50)])
def test_any_sizes(dtype: torch.dtype, num_rows: int, size_in: int, size_out: int) -> None:
    x, weight, _ = make(size_in, size_out, num_rows)
    assert_equal_to_reference(x, weight, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [2, MOST_ROWS + 1])
def test_half_precision_with_a_bias(dtype: torch.dtype, num_rows: int) -> None:
    x, weight, bias = make(320, 96, num_rows, torch.float16)
    assert_equal_to_reference(x, weight, dtype, bias)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("size_in", [1024, 2300])
def test_splits_of_the_inputs_and_their_sum(size_in: int, with_bias: bool) -> None:
    x, weight, bias = make(size_in, 100, 5)
    assert_equal_to_reference(x, weight, torch.int8, bias if with_bias else None)


def test_products_beyond_float16_come_out_right() -> None:
    """127 times many inputs: only the scaled sum has to be a float16."""
    x = torch.full((2, 1024), 8.0, dtype=torch.float16)
    actual = assert_equal_to_reference(x, torch.full((64, 1024), 0.5), torch.int8)
    assert (actual == 4096).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_take_the_weight_in_pieces(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 30 * 80 * 4)
    x, weight, bias = make(80, 100, MOST_ROWS + 1)
    assert_equal_to_reference(x, weight, dtype, bias)


def test_a_rows_result_does_not_depend_on_its_neighbours() -> None:
    x, weight, _ = make(1100, 70, 20)
    numbers, scales = (part.to(DEVICE) for part in quantize(weight, torch.int8))
    together = quantized_linear(x.to(DEVICE), numbers, scales, None)
    for rows in (slice(3, 4), slice(0, 17)):
        part = quantized_linear(x[rows].to(DEVICE), numbers, scales, None)
        torch.testing.assert_close(part, together[rows], rtol=1e-6, atol=1e-5)


def test_a_split_is_whole_units_and_fills_the_chip() -> None:
    assert choose_split(4096, 4096, H200) == 1024, "64 tiles, room for 264"
    assert choose_split(14_336, 4096, H200) == 3584
    assert choose_split(4096, 28_672, H200) == 4096, "448 tiles fill it"
    assert choose_split(576, 576, H200) == 1024, "too few inputs for two"
    assert choose_split(4096, 4096, MI300X) == 512
