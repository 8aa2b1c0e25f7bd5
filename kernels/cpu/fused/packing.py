"""Brings weights into the packed blocks of `linear.py`, bit-exact from GGUF's Q4_0, Q4_1, Q5_0 and Q8_0.

Everything else comes as float32 and is quantised to 8 bits in groups of 32 (scale = largest magnitude / 127 in float16).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.cpu.fused.linear import BLOCK_COLUMNS, GROUP_BYTES_4, GROUP_BYTES_8
from kernels.cpu.fused.quantize import GROUP


@dataclass(frozen=True)
class Groups4:
    """Weights scale * nibble + minimum: `words` [N, K/32, 4] uint32 as in GGUF, `scale`, `minimum` [N, K/32] float16."""

    words: np.ndarray
    scale: np.ndarray
    minimum: np.ndarray


@dataclass(frozen=True)
class Groups8:
    """Weights scale * number: `numbers` [N, K/32, 32] int8, `scale` [N, K/32] float16."""

    numbers: np.ndarray
    scale: np.ndarray


Groups = Groups4 | Groups8


def from_q4_0(rows: np.ndarray) -> Groups4:
    """GGUF Q4_0 rows [N, K/32 * 18] uint8: weight = scale * (nibble - 8); -8 * scale is exact in float16."""
    blocks = rows.reshape(len(rows), -1, 18)
    scale = _halves(blocks)
    with np.errstate(over="ignore"):
        minimum = scale * np.float16(-8)
    return Groups4(_words(blocks, 2), scale, minimum)


def from_q4_1(rows: np.ndarray) -> Groups4:
    """GGUF Q4_1 rows [N, K/32 * 20] uint8."""
    blocks = rows.reshape(len(rows), -1, 20)
    return Groups4(_words(blocks, 4), _halves(blocks), _halves(blocks[:, :, 2:]))


def from_q8_0(rows: np.ndarray) -> Groups8:
    """GGUF Q8_0 rows [N, K/32 * 34] uint8."""
    blocks = rows.reshape(len(rows), -1, 34)
    return Groups8(blocks[:, :, 2:].view(np.int8), _halves(blocks))


def from_q5_0(rows: np.ndarray) -> Groups8:
    """GGUF Q5_0 rows [N, K/32 * 22] uint8: weight = scale * (5 bits - 16), which 8 bits hold exactly."""
    blocks = rows.reshape(len(rows), -1, 22)
    fifth = np.unpackbits(blocks[:, :, 2:6], axis=2, bitorder="little")
    nibbles = np.concatenate([blocks[:, :, 6:] & 15, blocks[:, :, 6:] >> 4], axis=2)
    return Groups8((nibbles | fifth << 4).astype(np.int8) - np.int8(16), _halves(blocks))


def from_float(weights: np.ndarray) -> Groups8:
    """float32 weights [N, K], rounded to 8 bits; raises ValueError when they are not finite."""
    groups = weights.reshape(len(weights), -1, GROUP)
    largest = np.maximum(groups.max(axis=2), -groups.min(axis=2))
    if not np.isfinite(largest).all():
        raise ValueError("a weight is not a finite number")
    scale = (largest / 127).astype(np.float16)
    divisor = np.where(scale > 0, scale, 1).astype(np.float32)[:, :, None]
    numbers = np.rint(groups / divisor)
    return Groups8(np.clip(numbers, -127, 127, out=numbers).astype(np.int8), scale)


def to_float(groups: Groups) -> np.ndarray:
    """The weights [N, K] in float32."""
    scale = groups.scale.astype(np.float32)[:, :, None]
    if isinstance(groups, Groups8):
        return (groups.numbers * scale).reshape(len(scale), -1)
    packed = np.ascontiguousarray(groups.words).view(np.uint8)
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=2)
    values = nibbles * scale + groups.minimum.astype(np.float32)[:, :, None]
    return values.reshape(len(scale), -1)


def take_rows(groups: Groups, rows: np.ndarray | slice) -> Groups:
    """The output columns `rows`, in that order."""
    return type(groups)(*(part[rows] for part in vars(groups).values()))


def join(parts: Sequence[Groups]) -> Groups:
    """The output columns of all parts, which must be of one kind."""
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return type(parts[0])(*map(np.concatenate, columns))


def pad_columns(groups: Groups, multiple: int) -> Groups:
    """The same with zero weights up to a multiple of output columns."""
    missing = -len(groups.scale) % multiple
    if not missing:
        return groups
    padded = (
        np.pad(part, [(0, missing)] + [(0, 0)] * (part.ndim - 1)) for part in vars(groups).values()
    )
    return type(groups)(*padded)


def packed_size(groups: Groups) -> int:
    """Bytes of the packed form."""
    num_columns, num_groups = groups.scale.shape
    per_group = GROUP_BYTES_4 if isinstance(groups, Groups4) else GROUP_BYTES_8
    return num_columns // BLOCK_COLUMNS * num_groups * per_group


def pack(groups: Groups, out: np.ndarray) -> np.ndarray:
    """Writes the packed form into `out` [packed_size] uint8; returns the table entries [N / 32] int64 of its blocks."""
    num_columns, num_groups = groups.scale.shape
    num_blocks = num_columns // BLOCK_COLUMNS
    blocks = out.reshape(num_blocks, num_groups, -1)
    if isinstance(groups, Groups4):
        _pack_4(groups, blocks)
    else:
        _pack_8(groups, blocks)
    stride = blocks.shape[1] * blocks.shape[2]
    is_8_bit = int(isinstance(groups, Groups8))
    return out.ctypes.data + is_8_bit + stride * np.arange(num_blocks, dtype=np.int64)


def _pack_4(groups: Groups4, blocks: np.ndarray) -> None:
    num_blocks, num_groups, _ = blocks.shape
    words = blocks.view(np.uint32).reshape(num_blocks, num_groups, 5, 2, 16)
    columns = groups.words.reshape(num_blocks, 2, 16, num_groups, 4)
    words[:, :, :4] = columns.transpose(0, 3, 4, 1, 2)
    factors = blocks.view(np.float16)[:, :, 256:].reshape(num_blocks, num_groups, 2, 2, 16)
    for index, part in enumerate((groups.scale, groups.minimum)):
        factors[:, :, :, index] = part.reshape(num_blocks, 2, 16, num_groups).transpose(0, 3, 1, 2)


def _pack_8(groups: Groups8, blocks: np.ndarray) -> None:
    num_blocks, num_groups, _ = blocks.shape
    numbers = np.ascontiguousarray(groups.numbers).view(np.uint8) ^ np.uint8(128)
    columns = numbers.view(np.uint32).reshape(num_blocks, 2, 16, num_groups, 8)
    words = blocks.view(np.uint32)[:, :, :256].reshape(num_blocks, num_groups, 8, 2, 16)
    words[:] = columns.transpose(0, 3, 4, 1, 2)
    scale = groups.scale.reshape(num_blocks, 2, 16, num_groups).transpose(0, 3, 1, 2)
    blocks.view(np.float16)[:, :, 512:].reshape(num_blocks, num_groups, 2, 16)[:] = scale


def _halves(blocks: np.ndarray) -> np.ndarray:
    """The float16 at the start of every block: [N, K/32]."""
    return np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0]


def _words(blocks: np.ndarray, start: int) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, :, start:]).view(np.uint32)
