"""Brings weights into the packed blocks of `linear.py`, bit-exact from GGUF's Q4_0, Q4_1, Q5_0 and Q8_0.

Q4_K keeps its numbers; its scales and minima, products of a float16 and 6 bits, are rounded to float16. Everything else comes
as float32 and is quantised in groups of 32: to 8 bits (scale = largest magnitude / 127 in float16), or to 4 with a minimum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.cpu.fused.linear import BLOCK_COLUMNS, GROUP_BYTES_4, GROUP_BYTES_8
from kernels.cpu.fused.quantize import GROUP

_FITS = 3


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


def from_q4_k(rows: np.ndarray) -> Groups4:
    """GGUF Q4_K rows [N, K/256 * 144] uint8: weight = (d * 6 bits) * nibble - dmin * 6 bits, in 8 groups of a super-block."""
    blocks = rows.reshape(len(rows), -1, 144)
    factors = [_halves(blocks[:, :, start:]).astype(np.float32)[:, :, None] for start in (0, 2)]
    scale, minimum = (
        f * bits for f, bits in zip(factors, _six_bits(blocks[:, :, 4:16]), strict=True)
    )
    # 32 bytes hold a group in their low nibbles and the next one in the high ones.
    pairs = blocks[:, :, 16:].reshape(*blocks.shape[:2], 4, 1, 32)
    nibbles = np.concatenate([pairs & 15, pairs >> 4], axis=3)
    shape = (len(rows), -1)
    return _groups_4(nibbles.reshape(*shape, GROUP), scale.reshape(shape), -minimum.reshape(shape))


def _six_bits(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 8 scales and 8 minima that 12 bytes hold: 4 of each in 6 bits, the others in a nibble and two spare bits."""
    first, second, last = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (last & 15) | (first >> 6 << 4)], axis=-1)
    minima = np.concatenate([second & 63, (last >> 4) | (second >> 6 << 4)], axis=-1)
    return scales, minima


def from_float_4(weights: np.ndarray) -> Groups4:
    """float32 weights [N, K], rounded to 4 bits; raises ValueError when they are not finite.

    Scale and minimum begin as those of the extremes and are then fitted to the numbers by least squares.
    """
    groups = weights.reshape(len(weights), -1, GROUP)
    minimum, largest = groups.min(axis=2), groups.max(axis=2)
    if not np.isfinite([minimum, largest]).all():
        raise ValueError("a weight is not a finite number")
    scale, numbers = (largest - minimum) / 15, np.zeros(1, np.float32)
    for _ in range(_FITS):
        numbers = _nearest(groups, scale, minimum)
        scale, minimum = _fitted(groups, numbers, scale, minimum)
    scale, minimum = (part.astype(np.float16).astype(np.float32) for part in (scale, minimum))
    numbers = _nearest(groups, scale, minimum)
    return _groups_4(numbers.astype(np.uint8), scale, minimum)


def _nearest(groups: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    divisor = np.where(scale > 0, scale, 1)[:, :, None]
    return np.clip(np.rint((groups - minimum[:, :, None]) / divisor), 0, 15)


def _fitted(
    groups: np.ndarray, numbers: np.ndarray, scale: np.ndarray, minimum: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum with the least squared error for these numbers; as before where all numbers are the same."""
    mean_number, mean_weight = numbers.mean(axis=2), groups.mean(axis=2)
    deviation = numbers - mean_number[:, :, None]
    spread = (deviation**2).sum(axis=2)
    slope = (deviation * groups).sum(axis=2) / np.where(spread > 0, spread, 1)
    is_usable = (spread > 0) & (slope > 0)
    return (
        np.where(is_usable, slope, scale),
        np.where(is_usable, mean_weight - slope * mean_number, minimum),
    )


def _groups_4(numbers: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> Groups4:
    """Numbers [N, K/32, 32] uint8 in GGUF's pairs: input i in the low nibble of byte i, input 16 + i in the high one."""
    words = np.ascontiguousarray(numbers[..., :16] | numbers[..., 16:] << 4).view(np.uint32)
    return Groups4(words, scale.astype(np.float16), minimum.astype(np.float16))


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
    columns = groups.words.reshape(num_blocks, 2, 4, 2, 2, num_groups, 4)
    first, second = (columns[:, :, :, i].transpose(0, 4, 5, 1, 2, 3) for i in range(2))
    low = np.uint32(0x0F0F0F0F)
    words = blocks.view(np.uint32)[:, :, :128].reshape(num_blocks, num_groups, 4, 2, 4, 2, 2)
    words[..., 0] = first & low | (second & low) << 4
    words[..., 1] = first >> 4 & low | second & ~low
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
