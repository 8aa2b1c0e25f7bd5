"""Ranks a token in a row of logits.

    record of a rank: row i64, token i64, num_top i64, top i64 (address, i32 [num_top]), rank i64, largest f64, mass f64

The row's logits are finite. Equal logits rank by column.
"""

import numpy as np

from kernels.cpu.fused.candidates import (
    arrays,
    collect_bounded,
    column_bytes,
    doubles,
    find_masses,
    floats,
    ints,
    largest_of,
)
from kernels.cpu.fused.sampling_kernels import LOWEST, TILE, count_better, tile_maxima
from kernels.cpu.ir_tools import routine
from kernels.cpu.memory import load_i64, store_i64

RANK = np.dtype(
    [("row", "i8"), ("token", "i8"), ("num_top", "i8"), ("top", "i8"), ("rank", "i8"), ("largest", "f8"), ("mass", "f8")]
)  # fmt: skip
RANK_BYTES = RANK.itemsize
_TOKEN, _NUM_TOP, _TOP, _RANK, _LARGEST = 8, 16, 24, 32, 40


@routine
def rank_token(row, num_columns, record, scratch):
    """Fills in one record: the token's rank from 1, the row's best columns, its largest logit and mass."""
    tiles = (num_columns + TILE - 1) // TILE
    tile_maxima(row, num_columns, tiles, scratch)
    best = largest_of(scratch, tiles)
    mass = find_masses(row, num_columns, tiles, best, np.float32(1), scratch)
    found = doubles(record + _LARGEST, 2)
    found[0], found[1] = best, mass
    count_better(row, num_columns, load_i64(record + _TOKEN), record + _RANK)
    store_i64(record + _RANK, load_i64(record + _RANK) + 1)
    num_top = load_i64(record + _NUM_TOP)
    if num_top:
        _find_top(row, num_columns, scratch, best, num_top, load_i64(record + _TOP))


@routine
def _find_top(row, num_columns, scratch, best, num_top, out):
    """The best columns, best first: each time the first of the largest that are left."""
    count = collect_bounded(
        row, num_columns, scratch, scratch, best, np.float32(1), np.float32(LOWEST), num_top
    )
    base, size, top = arrays(num_columns, scratch), column_bytes(num_columns), ints(out, num_top)
    columns, scores = ints(base, count), floats(base + size, count)
    for place in range(num_top):
        found = 0
        for i in range(1, count):
            if scores[i] > scores[found]:
                found = i
        top[place] = columns[found]
        scores[found] = LOWEST
