"""Draws a token from a row of logits, without sorting or copying the row.

    record of a draw: row i64, uniform f64, top_p f64, inverse temperature f32 (0: the best token), floor f32, top_k i64, mask i64, token i64

Meaning and order are those of `engine.sampler`: a floor for the score and the top_k best (with ties) are lower bounds, then the
fewest best that reach `top_p` of what is left, then the token where the running mass passes `uniform` of the rest, in order of
columns. Equal scores rank by column. A mask is the address of a bit for each column, lowest first, up to a multiple of 16: columns
whose bit is 0 are not there. They are LOWEST in a copy of the row, where their scores stay under NO_SCORE and their weights are 0.
"""

import math

import numpy as np

from kernels.cpu.fused.candidates import (
    arrays,
    collect,
    collect_bounded,
    column_bytes,
    find_masses,
    floats,
    ints,
    keep_nucleus,
    largest_of,
    tile_bytes,
)
from kernels.cpu.fused.sampling_kernels import (
    LOWEST,
    TILE,
    keep_allowed,
    tile_maxima,
    weigh_scores,
)
from kernels.cpu.ir_tools import routine
from kernels.cpu.memory import load_f32, load_f64, load_i64, store_i64

DRAW = np.dtype(
    [("row", "i8"), ("uniform", "f8"), ("top_p", "f8"), ("inverse_temperature", "f4"), ("floor", "f4"), ("top_k", "i8"), ("mask", "i8"), ("token", "i8")]
)  # fmt: skip
DRAW_BYTES = DRAW.itemsize
UNUSABLE = -1
"""The token of a row with logits that are not finite, or without columns."""
NO_SCORE = np.float32(-1e38)
"""Under the score of every column that is there."""
_LOWEST_LOGIT = np.float32(LOWEST)
_UNIFORM, _TOP_P, _INVERSE, _FLOOR, _TOP_K, _MASK, _TOKEN = 8, 16, 24, 28, 32, 40, 48


@routine
def draw_token(row, num_columns, record, maxima, scratch):
    """Writes the token of one record; `maxima` are those of the row's tiles, or 0 where nobody knows them yet."""
    mask = load_i64(record + _MASK)
    if mask:
        kept = arrays(num_columns, scratch) + 5 * column_bytes(num_columns)
        keep_allowed(row, num_columns, mask, kept)
        row, maxima = kept, 0
    if maxima == 0:
        tile_maxima(row, num_columns, (num_columns + TILE - 1) // TILE, scratch)
        maxima = scratch
    store_i64(record + _TOKEN, _drawn(row, num_columns, record, maxima, scratch))


@routine
def _drawn(row, num_columns, record, maxima, scratch):
    tiles = (num_columns + TILE - 1) // TILE
    best = largest_of(maxima, tiles)
    if math.isnan(best) or best == _LOWEST_LOGIT:
        return UNUSABLE
    inverse, top_p = load_f32(record + _INVERSE), load_f64(record + _TOP_P)
    if inverse == 0:
        return _first_with(row, num_columns, maxima, best)
    floor, top_k = max(load_f32(record + _FLOOR), NO_SCORE), load_i64(record + _TOP_K)
    is_bounded = floor > NO_SCORE or 0 < top_k < num_columns
    uniform = load_f64(record + _UNIFORM)
    if is_bounded:
        count = collect_bounded(row, num_columns, maxima, scratch, best, inverse, floor, top_k)
        mass = -1.0
    else:
        mass = find_masses(row, num_columns, tiles, best, inverse, scratch)
        if top_p >= 1:
            return _pick_tile(row, num_columns, scratch, best, inverse, uniform, mass)
        bound = math.log((1 - top_p) * mass / num_columns) - 1e-3
        count = collect(row, num_columns, maxima, scratch, best, inverse, np.float32(bound))
    return _pick_candidate(num_columns, scratch, count, top_p, mass, uniform)


@routine
def _first_with(row, num_columns, maxima, value):
    """The first column with this logit, which is the largest of some tile."""
    of_tiles, logits = floats(maxima, num_columns // TILE + 1), floats(row, num_columns)
    column = 0
    while of_tiles[column // TILE] != value:
        column += TILE
    while logits[column] != value:
        column += 1
    return column


@routine
def _pick_candidate(num_columns, scratch, count, top_p, mass, uniform):
    """`mass`: of all columns that the bounds leave, or -1 when these are the candidates."""
    base, size = arrays(num_columns, scratch), column_bytes(num_columns)
    weigh_scores(base + size, count, base + 2 * size)
    columns, weights = ints(base, count), floats(base + 2 * size, count)
    if top_p < 1:
        if mass < 0:
            mass = 0.0
            for i in range(count):
                mass += weights[i]
        keep_nucleus(base, size, count, top_p * mass)
    total = 0.0
    for i in range(count):
        total += weights[i]
    return columns[_pick(weights, count, uniform * total)]


@routine
def _pick(weights, count, target):
    """The index at which the running sum passes `target`; the last with a weight where rounding leaves none."""
    running, last = 0.0, 0
    for i in range(count):
        if weights[i] > 0:
            running += weights[i]
            last = i
            if running > target:
                return i
    return last


@routine
def _pick_tile(row, num_columns, scratch, best, inverse, uniform, mass):
    """A draw from the whole row: the tile by its mass, then the column in it."""
    tiles = (num_columns + TILE - 1) // TILE
    masses = floats(scratch + tile_bytes(num_columns), tiles)
    target = uniform * mass
    tile = _pick(masses, tiles, target)
    for before in range(tile):
        target -= masses[before]
    base, size, start = arrays(num_columns, scratch), column_bytes(num_columns), tile * TILE
    count = min(TILE, num_columns - start)
    scores, logits = floats(base + size, count), floats(row + 4 * start, count)
    for i in range(count):
        scores[i] = (logits[i] - best) * inverse
    weigh_scores(base + size, count, base + 2 * size)
    return start + _pick(floats(base + 2 * size, count), count, target)
