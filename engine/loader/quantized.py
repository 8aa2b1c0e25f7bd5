"""Weights kept in four or eight bits, and how GGUF's blocks become them.

A four-bit weight is `(nibble - 8) * scale + zero` with one scale and zero per group of 32 inputs. Q4_0 and Q4_1 of GGUF have
exactly this shape, so their nibbles are kept as they are; only scale and zero are rounded to bfloat16. An eight-bit weight on a GPU has a
scale for each output, whatever the file has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType

from engine.loader.gguf_file import GGUFTensor
from kernels.eight_bits import dequantize, quantize

GROUP_SIZE = 32
PIECE_NUMBERS = 16 << 20
"""Of a weight that is rounded to eight bits, how many at a time."""


@dataclass(frozen=True)
class Int4Weight:
    """`nibbles` [out, in] uint8 of 0 to 15; `scales`, `zeros` [out, in / GROUP_SIZE] float32."""

    nibbles: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    @staticmethod
    def concatenate(parts: Sequence["Int4Weight"]) -> "Int4Weight":
        """One weight with the outputs of all parts, in order."""
        return Int4Weight(
            torch.cat([part.nibbles for part in parts]),
            torch.cat([part.scales for part in parts]),
            torch.cat([part.zeros for part in parts]),
        )

    def take_rows(self, rows: torch.Tensor) -> "Int4Weight":
        """The outputs `rows` [out] int64, in that order."""
        return Int4Weight(self.nibbles[rows], self.scales[rows], self.zeros[rows])


@dataclass(frozen=True)
class Int8Table:
    """Rows of `values` [rows, groups, GROUP_SIZE] int8 times `scales` [rows, groups] float32, as Q8_0 stores them."""

    values: torch.Tensor
    scales: torch.Tensor

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The exact rows [..., size] float32 of rows [...] int64."""
        return (self.values[rows] * self.scales[rows][..., None]).flatten(-2)


@dataclass(frozen=True)
class EightBitWeight:
    """`numbers` [out, in] and `scales` [out] as `kernels.eight_bits` has them."""

    numbers: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def of(weight: torch.Tensor, dtype: torch.dtype, device: torch.device) -> "EightBitWeight":
        """A weight [out, in] of floats rounded on `device`, where it is never whole."""
        outputs = max(1, PIECE_NUMBERS // weight.shape[1])
        pieces = [quantize(piece.to(device), dtype) for piece in weight.split(outputs)]
        numbers, scales = zip(*pieces, strict=True)
        joined = torch.cat([part.view(torch.uint8) for part in numbers]).view(dtype)
        return EightBitWeight(joined, torch.cat(scales))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows [..., in] float32 of rows [...] int64."""
        # Not every type of eight bits can be indexed; bytes can.
        numbers = self.numbers.view(torch.uint8)[rows].view(self.numbers.dtype)
        return dequantize(numbers, self.scales[rows])


def int8_from_gguf(tensor: GGUFTensor) -> Int8Table | None:
    """The table behind a Q8_0 matrix; None for every other type."""
    if tensor.quantization != GGMLQuantizationType.Q8_0:
        return None
    num_rows, size = tensor.shape
    blocks = tensor.data.reshape(num_rows, size // GROUP_SIZE, 2 + GROUP_SIZE)
    scales = blocks[:, :, :2].copy().view(np.float16)[:, :, 0].astype(np.float32)
    values = blocks[:, :, 2:].copy().view(np.int8)
    return Int8Table(torch.from_numpy(values), torch.from_numpy(scales))


def int4_from_gguf(tensor: GGUFTensor) -> Int4Weight | None:
    """The weight behind a Q4_0 or Q4_1 matrix; None for every other type."""
    if tensor.quantization == GGMLQuantizationType.Q4_0:
        scale, _, nibbles = _split_blocks(tensor, num_halves=1)
        return Int4Weight(nibbles, scale, torch.zeros_like(scale))
    if tensor.quantization == GGMLQuantizationType.Q4_1:
        scale, minimum, nibbles = _split_blocks(tensor, num_halves=2)
        return Int4Weight(nibbles, scale, minimum + 8 * scale)
    return None


def _split_blocks(
    tensor: GGUFTensor, num_halves: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A block is 1 or 2 float16 (scale, minimum), then 16 bytes: low nibbles are inputs 0-15, high ones 16-31."""
    out_features, in_features = tensor.shape
    num_groups = in_features // GROUP_SIZE
    blocks = tensor.data.reshape(out_features, num_groups, 2 * num_halves + GROUP_SIZE // 2)
    halves = blocks[:, :, : 2 * num_halves].copy().view(np.float16).astype(np.float32)
    packed = blocks[:, :, 2 * num_halves :]
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(out_features, in_features)
    first, last = (torch.from_numpy(halves[:, :, i].copy()) for i in (0, -1))
    return first, last, torch.from_numpy(nibbles)
