"""The shipped tables of tiles. Chosen by what compiles without spills, with Triton 3.6 and 3.9, and fits into shared memory; nothing is tuned at run time.

`benchmarks.triton_aot` compiles every entry and checks it; `docs/kernels.md` says what limits each of them.
"""

from dataclasses import dataclass, replace

import triton

from kernels.triton.attention_tile import AttentionShape
from kernels.triton.chip import Chip

TILE_BYTES = 16_384


@dataclass(frozen=True)
class Tiling:
    """`block_m` rows of queries against `block_n` keys at a time, in `num_warps` warps, with `num_stages` stages of loads."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# By `kind_of` and padded head dim. The products of float32 take three times the registers (two on AMD); numbers of eight bits take
# more too, while they are widened.
_AMPERE = {
    "16 bits": {64: Tiling(128, 128, 8, 3), 128: Tiling(128, 32, 8, 3), 256: Tiling(64, 32, 8, 2)},
    "8 bits": {64: Tiling(128, 32, 8, 3), 128: Tiling(128, 16, 8, 3), 256: Tiling(32, 32, 8, 2)},
    "32 bits": {64: Tiling(32, 32, 8, 2), 128: Tiling(16, 32, 4, 2), 256: Tiling(16, 16, 4, 2)},
}
_HOPPER = {
    "16 bits": {64: Tiling(128, 128, 8, 3), 128: Tiling(128, 64, 8, 3), 256: Tiling(128, 32, 8, 3)},
    "8 bits": {64: Tiling(128, 64, 8, 3), 128: Tiling(128, 64, 8, 3), 256: Tiling(64, 32, 8, 3)},
    "32 bits": _AMPERE["32 bits"],
}
_CDNA = {
    "16 bits": {64: Tiling(128, 64, 4, 2), 128: Tiling(128, 64, 4, 2), 256: Tiling(64, 32, 4, 2)},
    "8 bits": {64: Tiling(128, 64, 4, 2), 128: Tiling(128, 32, 4, 2), 256: Tiling(64, 32, 4, 2)},
    "32 bits": {64: Tiling(64, 32, 4, 2), 128: Tiling(64, 32, 4, 2), 256: Tiling(64, 16, 4, 2)},
}


def kind_of(shape: AttentionShape) -> str:
    """Products of float32 are what counts, whatever is stored; else how many bits are."""
    if shape.itemsize == 4:
        return "32 bits"
    return "8 bits" if shape.has_scales else "16 bits"


def prefill_tiling(shape: AttentionShape, chip: Chip) -> Tiling:
    """Large tiles of queries: what limits prefill is arithmetic.

    Eight bits that go to shared memory widened leave no registers for a window's masks, so half the keys are looked at then.
    """
    nvidia = _HOPPER if chip.multiplies_from_memory else _AMPERE
    table = _CDNA if chip.is_amd else nvidia
    tiling = table[kind_of(shape)][max(64, shape.head_dim_padded)]
    if shape.has_limits and kind_of(shape) == "8 bits" and chip.multiplies_from_memory:
        return replace(tiling, block_n=tiling.block_n // 2)
    return tiling


def decode_slots(shape: AttentionShape, chip: Chip) -> int:
    """How many decode programs run at once: shared memory has room for two or three on a core."""
    return chip.num_cores * (3 if chip.multiplies_from_memory and not shape.has_scales else 2)


def decode_tiling(shape: AttentionShape, chip: Chip) -> Tiling:
    """The heads of a group, 16 rows at least since tl.dot takes no fewer, against TILE_BYTES of keys at a time.

    On NVIDIA a tile of eight bits lies in memory twice, the second time widened, and has twice the keys: of what a turn of the loop costs, each
    bears half.
    """
    is_copied = kind_of(shape) == "8 bits" and not chip.is_amd
    row_bytes = shape.head_dim_padded if is_copied else shape.row_bytes
    fewer_stages = chip.is_amd or (shape.has_scales and not chip.multiplies_from_memory)
    return Tiling(
        block_m=max(16, triton.next_power_of_2(shape.group)),
        block_n=max(16, min(128, TILE_BYTES // row_bytes)),
        num_warps=4,
        num_stages=2 if fewer_stages else 3,
    )
