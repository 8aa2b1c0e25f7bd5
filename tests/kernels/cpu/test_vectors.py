"""Numbers of the compiled code: every 16-bit float, rounding to them, powers of two."""

import pytest
import torch
from numba import njit

from kernels.cpu import vectors
from kernels.cpu.llvm import BFLOAT16, FLOAT16
from kernels.cpu.rows import load_row, store_row


@njit
def through(source, dtype_in, target, dtype_out, row, size):
    """Numbers of one dtype to another, as the routines convert them."""
    load_row(source, dtype_in, row, size)
    store_row(row, target, dtype_out, size)


@njit
def powers(x, out):
    for i in range(x.size):
        out[i] = vectors.exp2(x[i])


def convert(x: torch.Tensor, code_in: int, out: torch.Tensor, code_out: int) -> torch.Tensor:
    row = torch.empty(x.numel())
    through(x.data_ptr(), code_in, out.data_ptr(), code_out, row.data_ptr(), x.numel())
    return out


@pytest.mark.parametrize(("dtype", "code"), [(torch.bfloat16, BFLOAT16), (torch.float16, FLOAT16)])
def test_every_16_bit_float_widens_exactly(dtype: torch.dtype, code: int) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    widened = convert(every, code, torch.empty(every.shape), 0)
    torch.testing.assert_close(widened, every.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("dtype", "code"), [(torch.bfloat16, BFLOAT16), (torch.float16, FLOAT16)])
def test_narrowing_rounds_to_nearest_even(dtype: torch.dtype, code: int) -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (50_000,), generator=generator, dtype=torch.int64)
    ties = torch.tensor([0x3F808000, 0x3F818000, 0x3F801000, 0x3F803000, 0x7F7FFFFF, 0x7F800001])
    x = torch.cat((bits.to(torch.int32), ties.to(torch.int32))).view(torch.float32)
    narrowed = convert(x, 0, torch.empty(x.shape, dtype=dtype), code)
    torch.testing.assert_close(narrowed, x.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_exp2_over_its_range() -> None:
    x = torch.linspace(-125.99, 126.99, 100_001)
    out = torch.empty_like(x)
    powers(x.numpy(), out.numpy())
    torch.testing.assert_close(out.double(), torch.exp2(x.double()), rtol=3e-7, atol=0)


def test_exp2_at_the_ends() -> None:
    x = torch.tensor([float("-inf"), -1000.0, -126.0, 127.0, 1000.0, float("inf"), float("nan")])
    out = torch.empty_like(x)
    powers(x.numpy(), out.numpy())
    expected = torch.tensor([0.0, 0.0, 0.0, 2.0**127, 2.0**127, 2.0**127, float("nan")])
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
