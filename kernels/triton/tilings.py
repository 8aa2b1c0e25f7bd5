"""The shipped tables of tiles. Chosen by what compiles without spills and fits into shared memory; nothing is tuned at run time.

`benchmarks.triton_aot` compiles every entry and checks it; `docs/kernels.md` says what limits each of them.
"""

from dataclasses import dataclass

import triton

from kernels.triton.attention_tile import AttentionShape
from kernels.triton.chip import Chip

TILE_BYTES = 16_384
LARGE_SHARED_BYTES = 200_000


@dataclass(frozen=True)
class Tiling:
    """`block_m` rows of queries against `block_n` keys at a time, in `num_warps` warps, with `num_stages` stages of loads."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# By padded head dim: 16-bit numbers, then float32, whose products take three times the registers (two on AMD).
_AMPERE = {
    2: {64: Tiling(128, 128, 8, 3), 128: Tiling(128, 32, 8, 3), 256: Tiling(64, 32, 8, 2)},
    4: {64: Tiling(16, 32, 4, 2), 128: Tiling(16, 32, 4, 2), 256: Tiling(16, 16, 4, 2)},
}
_HOPPER = {
    2: {64: Tiling(128, 128, 8, 3), 128: Tiling(128, 64, 8, 3), 256: Tiling(128, 32, 8, 3)},
    4: _AMPERE[4] | {64: Tiling(32, 32, 4, 2)},
}
_CDNA = {
    2: {64: Tiling(128, 64, 4, 2), 128: Tiling(128, 64, 4, 2), 256: Tiling(64, 32, 4, 2)},
    4: {64: Tiling(64, 32, 4, 2), 128: Tiling(64, 32, 4, 2), 256: Tiling(64, 16, 4, 2)},
}


def prefill_tiling(shape: AttentionShape, chip: Chip) -> Tiling:
    """Large tiles of queries: what limits prefill is arithmetic."""
    nvidia = _HOPPER if chip.shared_bytes >= LARGE_SHARED_BYTES else _AMPERE
    table = _CDNA if chip.is_amd else nvidia
    return table[shape.itemsize][max(64, shape.head_dim_padded)]


def decode_slots(chip: Chip) -> int:
    """How many decode programs run at once: shared memory has room for two or three on a core."""
    return chip.num_cores * (3 if chip.shared_bytes >= LARGE_SHARED_BYTES else 2)


def decode_tiling(shape: AttentionShape, chip: Chip) -> Tiling:
    """The heads of a group, 16 rows at least since tl.dot takes no fewer, against TILE_BYTES of keys at a time."""
    return Tiling(
        block_m=max(16, triton.next_power_of_2(shape.group)),
        block_n=max(16, min(128, TILE_BYTES // shape.row_bytes)),
        num_warps=4,
        num_stages=2 if chip.is_amd else 3,
    )
