"""Draws a token from a row of logits, and ranks one in it, without sorting or copying the row.

    record of a draw: row i64, uniform f64, top_p f64, inverse temperature f32 (0: the best token), floor f32, top_k i64, mask i64, token i64
    record of a rank: row i64, token i64, num_top i64, top i64 (address, i32 [num_top]), rank i64, largest f64, mass f64

Meaning and order are those of `engine.sampler`: a floor for the score and the top_k best (with ties) are lower bounds, then the
fewest best that reach `top_p` of what is left, then the token where the running mass passes `uniform` of the rest, in order of
columns. Equal scores rank by column. A mask is the address of a bit for each column, lowest first, up to a multiple of 16: columns
whose bit is 0 are not there. They are LOWEST in a copy of the row, where their scores stay under NO_SCORE and their weights are 0.

What a row keeps is found through the maxima of its tiles: the k-th largest of them is a bound that at least k columns reach, and
columns below log((1 - top_p) * mass / columns) weigh less than 1 - top_p of the mass together, so they are not in the
nucleus. Both are exact whatever the row looks like; an odd row only makes more candidates. Sums are in float64.
"""

import math

import numba
import numpy as np

from kernels.cpu.fused.sampling_kernels import (
    LOWEST,
    TILE,
    count_better,
    keep_allowed,
    tile_masses,
    tile_maxima,
    weigh_scores,
)
from kernels.cpu.ir_tools import routine
from kernels.cpu.memory import (
    load_f32,
    load_f64,
    load_i64,
    pointer,
    store_i64,
)

DRAW = np.dtype(
    [("row", "i8"), ("uniform", "f8"), ("top_p", "f8"), ("inverse_temperature", "f4"), ("floor", "f4"), ("top_k", "i8"), ("mask", "i8"), ("token", "i8")]
)  # fmt: skip
RANK = np.dtype(
    [("row", "i8"), ("token", "i8"), ("num_top", "i8"), ("top", "i8"), ("rank", "i8"), ("largest", "f8"), ("mass", "f8")]
)  # fmt: skip
DRAW_BYTES, RANK_BYTES = DRAW.itemsize, RANK.itemsize
FEW, NUM_BINS = 1024, 512
"""Candidates that are selected from without looking at bins first, and those bins."""
UNUSABLE = -1
"""The token of a row with logits that are not finite, or without columns."""
NO_SCORE = np.float32(-1e38)
"""Under the score of every column that is there."""
_LOWEST_LOGIT = np.float32(LOWEST)
_D_UNIFORM, _D_TOP_P, _D_INVERSE, _D_FLOOR, _D_TOP_K, _D_MASK, _D_TOKEN = 8, 16, 24, 28, 32, 40, 48
_R_TOKEN, _R_NUM_TOP, _R_TOP, _R_RANK, _R_LARGEST = 8, 16, 24, 32, 40
_ALIGNED = 64


def scratch_bytes(num_columns: int) -> int:
    """Memory of a thread: maxima and masses of tiles, then columns, scores, weights, room to select in, and what a mask keeps."""
    tiles, columns = _tile_bytes.py_func(num_columns), _column_bytes.py_func(num_columns)
    return 2 * tiles + 6 * columns


@routine
def _tile_bytes(num_columns):
    return (num_columns // TILE + 1) * 4 // _ALIGNED * _ALIGNED + _ALIGNED


@routine
def _column_bytes(num_columns):
    return num_columns * 4 // _ALIGNED * _ALIGNED + 2 * _ALIGNED


@routine
def _floats(address, count):
    return numba.carray(pointer(address), count, np.float32)


@routine
def _ints(address, count):
    return numba.carray(pointer(address), count, np.int32)


@routine
def _doubles(address, count):
    return numba.carray(pointer(address), count, np.float64)


@routine
def draw_token(row, num_columns, record, scratch):
    """Writes the token of one record."""
    mask = load_i64(record + _D_MASK)
    if mask:
        kept = _arrays(num_columns, scratch) + 5 * _column_bytes(num_columns)
        keep_allowed(row, num_columns, mask, kept)
        row = kept
    store_i64(record + _D_TOKEN, _drawn(row, num_columns, record, scratch))


@routine
def _drawn(row, num_columns, record, scratch):
    tiles = (num_columns + TILE - 1) // TILE
    if not _find_maxima(row, num_columns, tiles, scratch):
        return UNUSABLE
    best = _largest(scratch, tiles)
    if best == _LOWEST_LOGIT:
        return UNUSABLE
    inverse, top_p = load_f32(record + _D_INVERSE), load_f64(record + _D_TOP_P)
    if inverse == 0:
        return _first_with(row, num_columns, scratch, best)
    floor, top_k = max(load_f32(record + _D_FLOOR), NO_SCORE), load_i64(record + _D_TOP_K)
    is_bounded = floor > NO_SCORE or 0 < top_k < num_columns
    uniform = load_f64(record + _D_UNIFORM)
    if is_bounded:
        count = _collect_bounded(row, num_columns, scratch, best, inverse, floor, top_k)
        mass = -1.0
    else:
        mass = _find_masses(row, num_columns, tiles, best, inverse, scratch)
        if top_p >= 1:
            return _pick_tile(row, num_columns, scratch, best, inverse, uniform, mass)
        bound = math.log((1 - top_p) * mass / num_columns) - 1e-3
        count = _collect(row, num_columns, scratch, best, inverse, np.float32(bound))
    return _pick_candidate(num_columns, scratch, count, top_p, mass, uniform)


# --- passes over the row -------------------------------------------------------------------------


@routine
def _find_maxima(row, num_columns, tiles, scratch):
    """Whether all logits are finite; the maxima are at the start of the scratch memory."""
    doubts = scratch + _tile_bytes(num_columns)
    tile_maxima(row, num_columns, tiles, scratch, doubts)
    lanes, total = _floats(doubts, 16), np.float32(0)
    for lane in range(16):
        total += lanes[lane]
    return total == 0


@routine
def _largest(scratch, tiles):
    maxima = _floats(scratch, tiles)
    best = maxima[0]
    for tile in range(1, tiles):
        best = max(best, maxima[tile])
    return best


@routine
def _first_with(row, num_columns, scratch, value):
    """The first column with this logit, which is the largest of some tile."""
    maxima, logits = _floats(scratch, num_columns // TILE + 1), _floats(row, num_columns)
    column = 0
    while maxima[column // TILE] != value:
        column += TILE
    while logits[column] != value:
        column += 1
    return column


@routine
def _find_masses(row, num_columns, tiles, best, inverse, scratch):
    masses = scratch + _tile_bytes(num_columns)
    tile_masses(row, num_columns, tiles, best, inverse, masses)
    of_tiles, total = _floats(masses, tiles), 0.0
    for tile in range(tiles):
        total += of_tiles[tile]
    return total


@routine
def _arrays(num_columns, scratch):
    """Address of the candidates' columns; their scores, weights and the room to select in follow."""
    return scratch + 2 * _tile_bytes(num_columns)


@routine
def _collect(row, num_columns, scratch, best, inverse, bound):
    """Candidates: columns with a score of at least `bound`, in order; returns how many."""
    size, base = _column_bytes(num_columns), _arrays(num_columns, scratch)
    columns, scores = _ints(base, num_columns), _floats(base + size, num_columns)
    maxima, logits = _floats(scratch, num_columns // TILE + 1), _floats(row, num_columns)
    count = 0
    for start in range(0, num_columns, TILE):
        if (maxima[start // TILE] - best) * inverse >= bound:
            for column in range(start, min(start + TILE, num_columns)):
                score = (logits[column] - best) * inverse
                columns[count], scores[count] = column, score  # overwritten if it is none
                count += 1 if score >= bound else 0
    return count


@routine
def _collect_bounded(row, num_columns, scratch, best, inverse, floor, top_k):
    """Candidates above the floor and among the top_k best."""
    base, size = _arrays(num_columns, scratch), _column_bytes(num_columns)
    tiles = (num_columns + TILE - 1) // TILE
    bound, has_top_k = floor, 0 < top_k < num_columns
    if has_top_k and top_k <= tiles:
        maxima, values = _floats(scratch, tiles), _floats(base + 3 * size, tiles)
        for tile in range(tiles):
            values[tile] = (maxima[tile] - best) * inverse
        bound = max(bound, _kth_best(base + 3 * size, base + 4 * size, tiles, top_k))
    count = _collect(row, num_columns, scratch, best, inverse, bound)
    if has_top_k and count > top_k:
        scores, values = _floats(base + size, count), _floats(base + 3 * size, count)
        for i in range(count):
            values[i] = scores[i]
        count = _keep_from(
            base, size, count, _kth_best(base + 3 * size, base + 4 * size, count, top_k)
        )
    return count


@routine
def _keep_from(base, size, count, bound):
    columns, scores, kept = _ints(base, count), _floats(base + size, count), 0
    for i in range(count):
        if scores[i] >= bound:
            columns[kept], scores[kept] = columns[i], scores[i]
            kept += 1
    return kept


# --- selection -----------------------------------------------------------------------------------


@routine
def _kth_best(values, ones, count, k):
    """The k-th largest value; changes their order."""
    weights = _floats(ones, count)
    for i in range(count):
        weights[i] = 1
    return _edge(values, ones, count, k)[0]


@routine
def _edge(values, weights, count, target):
    """The largest value at which the weights of it and of larger ones reach `target`, and the weight of the larger ones.

    The smallest value if they never do. Changes the order of both arrays. Quickselect by weight, three ways.
    """
    v, w = _floats(values, count), _floats(weights, count)
    begin, end, above = 0, count, 0.0
    pivot = v[0]
    while begin < end:
        first, middle, last = v[begin], v[(begin + end) // 2], v[end - 1]
        pivot = max(min(first, middle), min(max(first, middle), last))
        larger, equal, i, rest = 0.0, 0.0, begin, end
        place = begin
        while i < rest:
            if v[i] > pivot:
                larger += w[i]
                v[i], v[place], w[i], w[place] = v[place], v[i], w[place], w[i]
                place += 1
                i += 1
            elif v[i] == pivot:
                equal += w[i]
                i += 1
            else:
                rest -= 1
                v[i], v[rest], w[i], w[rest] = v[rest], v[i], w[rest], w[i]
        if place > begin and above + larger >= target:
            end = place
        elif above + larger + equal >= target or rest == end:
            return pivot, above + larger
        else:
            above += larger + equal
            begin = rest
    return pivot, above


@routine
def _keep_nucleus(base, size, count, target):
    """Sets the weights of candidates to 0 but for the fewest best that reach `target`, one at least."""
    scores, weights = _floats(base + size, count), _floats(base + 2 * size, count)
    values, masses, found = _floats(base + 3 * size, count), _floats(base + 4 * size, count), 0
    factor, edge_bin, mass = _edge_bin(base, size, count, target)
    for i in range(count):
        values[found], masses[found] = scores[i], weights[i]  # overwritten if it is not there
        found += 1 if np.int32(scores[i] * factor) == edge_bin else 0
    edge, larger = _edge(base + 3 * size, base + 4 * size, found, target - mass)
    mass += larger
    is_first = True
    for i in range(count):
        if scores[i] < edge:
            weights[i] = 0
        elif scores[i] == edge:
            if is_first or mass < target:
                mass += weights[i]
                is_first = False
            else:
                weights[i] = 0


@routine
def _edge_bin(base, size, count, target):
    """Bins of equal width by score * factor: (factor, the bin where `target` is reached, the mass of better ones)."""
    scores, weights = _floats(base + size, count), _floats(base + 2 * size, count)
    lowest = scores[0]
    for i in range(count):
        lowest = min(lowest, scores[i])
    if count <= FEW or lowest == 0:
        return np.float32(0), 0, 0.0
    masses, factor = _doubles(base + 3 * size, NUM_BINS), np.float32(NUM_BINS - 1) / lowest
    for i in range(NUM_BINS):
        masses[i] = 0
    for i in range(count):
        masses[np.int32(scores[i] * factor)] += weights[i]
    better, found, before = 0.0, 0, 0.0
    for i in range(NUM_BINS):
        if masses[i] > 0:
            found, before = i, better
            better += masses[i]
            if better >= target:
                break
    return factor, found, before


# --- draws ---------------------------------------------------------------------------------------


@routine
def _pick_candidate(num_columns, scratch, count, top_p, mass, uniform):
    """`mass`: of all columns that the bounds leave, or -1 when these are the candidates."""
    base, size = _arrays(num_columns, scratch), _column_bytes(num_columns)
    weigh_scores(base + size, count, base + 2 * size)
    columns, weights = _ints(base, count), _floats(base + 2 * size, count)
    if top_p < 1:
        if mass < 0:
            mass = 0.0
            for i in range(count):
                mass += weights[i]
        _keep_nucleus(base, size, count, top_p * mass)
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
    masses = _floats(scratch + _tile_bytes(num_columns), tiles)
    target = uniform * mass
    tile = _pick(masses, tiles, target)
    for before in range(tile):
        target -= masses[before]
    base, size, start = _arrays(num_columns, scratch), _column_bytes(num_columns), tile * TILE
    count = min(TILE, num_columns - start)
    scores, logits = _floats(base + size, count), _floats(row + 4 * start, count)
    for i in range(count):
        scores[i] = (logits[i] - best) * inverse
    weigh_scores(base + size, count, base + 2 * size)
    return start + _pick(_floats(base + 2 * size, count), count, target)


# --- ranks ---------------------------------------------------------------------------------------


@routine
def rank_token(row, num_columns, record, scratch):
    """Fills in one record: the token's rank from 1, the row's best columns, its largest logit and mass."""
    tiles = (num_columns + TILE - 1) // TILE
    _find_maxima(row, num_columns, tiles, scratch)
    best = _largest(scratch, tiles)
    mass = _find_masses(row, num_columns, tiles, best, np.float32(1), scratch)
    found = _doubles(record + _R_LARGEST, 2)
    found[0], found[1] = best, mass
    count_better(row, num_columns, load_i64(record + _R_TOKEN), record + _R_RANK)
    store_i64(record + _R_RANK, load_i64(record + _R_RANK) + 1)
    num_top = load_i64(record + _R_NUM_TOP)
    if num_top:
        _find_top(row, num_columns, scratch, best, num_top, load_i64(record + _R_TOP))


@routine
def _find_top(row, num_columns, scratch, best, num_top, out):
    """The best columns, best first: each time the first of the largest that are left."""
    count = _collect_bounded(
        row, num_columns, scratch, best, np.float32(1), np.float32(LOWEST), num_top
    )
    base, size, top = _arrays(num_columns, scratch), _column_bytes(num_columns), _ints(out, num_top)
    columns, scores = _ints(base, count), _floats(base + size, count)
    for place in range(num_top):
        found = 0
        for i in range(1, count):
            if scores[i] > scores[found]:
                found = i
        top[place] = columns[found]
        scores[found] = LOWEST
