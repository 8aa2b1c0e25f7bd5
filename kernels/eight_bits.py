"""Rows of numbers in eight bits, with a scale for each row: the format of keys and values and of weights.

A number stands for `number / LARGEST * scale`; the scale is the largest magnitude of the row, float32. int8 is rounded in even steps, e4m3
(sign, 4 bits of exponent, 3 of mantissa) in steps that shrink with the number.
"""

import torch

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The number that the largest magnitude becomes, by the type of numbers."""
SMALLEST_SCALE = 1e-30
"""Of rows of zeros too: its reciprocal must be a number."""


def quantize(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers [..., size] rounded to the nearest (halves to even), and scales [...] float32, of rows [..., size]."""
    rows = rows.float()
    scales = rows.abs().amax(-1).clamp(min=SMALLEST_SCALE)
    numbers = rows * (LARGEST[dtype] / scales)[..., None]
    return (numbers if dtype.is_floating_point else numbers.round()).to(dtype), scales


def dequantize(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What numbers [..., size] with scales [...] stand for, float32."""
    return numbers.float() * (scales / LARGEST[numbers.dtype])[..., None]
