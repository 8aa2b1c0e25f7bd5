"""Which columns of a row of logits can be drawn at all, found without sorting or copying the row, and its memory for that.

    scratch memory of a thread: maxima and masses of tiles, then columns, scores, weights, room to select in, and what a mask keeps

What a row keeps is found through the maxima of its tiles: the k-th largest of them is a bound that at least k columns reach, and
columns below log((1 - top_p) * mass / columns) weigh less than 1 - top_p of the mass together, so they are not in the
nucleus. Both are exact whatever the row looks like; an odd row only makes more candidates. Sums are in float64.
"""

import numba
import numpy as np

from kernels.cpu.fused.sampling_kernels import TILE, tile_masses
from kernels.cpu.ir_tools import routine
from kernels.cpu.memory import pointer

FEW, NUM_BINS = 1024, 512
"""Candidates that are selected from without looking at bins first, and those bins."""
_ALIGNED = 64


def scratch_bytes(num_columns: int) -> int:
    """Memory of a thread, as the module docstring lists it."""
    tiles, columns = tile_bytes.py_func(num_columns), column_bytes.py_func(num_columns)
    return 2 * tiles + 6 * columns


@routine
def tile_bytes(num_columns):
    return (num_columns // TILE + 1) * 4 // _ALIGNED * _ALIGNED + _ALIGNED


@routine
def column_bytes(num_columns):
    return num_columns * 4 // _ALIGNED * _ALIGNED + 2 * _ALIGNED


@routine
def floats(address, count):
    return numba.carray(pointer(address), count, np.float32)


@routine
def ints(address, count):
    return numba.carray(pointer(address), count, np.int32)


@routine
def doubles(address, count):
    return numba.carray(pointer(address), count, np.float64)


@routine
def arrays(num_columns, scratch):
    """Address of the candidates' columns; their scores, weights and the room to select in follow."""
    return scratch + 2 * tile_bytes(num_columns)


# --- passes over the row -------------------------------------------------------------------------


@routine
def largest_of(maxima, tiles):
    """The row's largest logit; NaN if one of the row is not finite."""
    values = floats(maxima, tiles)
    best, doubt = values[0], values[0] * np.float32(0)
    for tile in range(1, tiles):
        best = max(best, values[tile])
        doubt += values[tile] * np.float32(0)
    return best + doubt


@routine
def find_masses(row, num_columns, tiles, best, inverse, scratch):
    """The mass of all columns; those of the tiles lie behind the maxima in the scratch memory."""
    masses = scratch + tile_bytes(num_columns)
    tile_masses(row, num_columns, tiles, best, inverse, masses)
    of_tiles, total = floats(masses, tiles), 0.0
    for tile in range(tiles):
        total += of_tiles[tile]
    return total


@routine
def collect(row, num_columns, maxima, scratch, best, inverse, bound):
    """Candidates: columns with a score of at least `bound`, in order; returns how many."""
    size, base = column_bytes(num_columns), arrays(num_columns, scratch)
    columns, scores = ints(base, num_columns), floats(base + size, num_columns)
    of_tiles, logits = floats(maxima, num_columns // TILE + 1), floats(row, num_columns)
    count = 0
    for start in range(0, num_columns, TILE):
        if (of_tiles[start // TILE] - best) * inverse >= bound:
            for column in range(start, min(start + TILE, num_columns)):
                score = (logits[column] - best) * inverse
                columns[count], scores[count] = column, score  # overwritten if it is none
                count += 1 if score >= bound else 0
    return count


@routine
def collect_bounded(row, num_columns, maxima, scratch, best, inverse, floor, top_k):
    """Candidates above the floor and among the top_k best."""
    base, size = arrays(num_columns, scratch), column_bytes(num_columns)
    tiles = (num_columns + TILE - 1) // TILE
    bound, has_top_k = floor, 0 < top_k < num_columns
    if has_top_k and top_k <= tiles:
        of_tiles, values = floats(maxima, tiles), floats(base + 3 * size, tiles)
        for tile in range(tiles):
            values[tile] = (of_tiles[tile] - best) * inverse
        bound = max(bound, _kth_best(base + 3 * size, base + 4 * size, tiles, top_k))
    count = collect(row, num_columns, maxima, scratch, best, inverse, bound)
    if has_top_k and count > top_k:
        scores, values = floats(base + size, count), floats(base + 3 * size, count)
        for i in range(count):
            values[i] = scores[i]
        count = _keep_from(
            base, size, count, _kth_best(base + 3 * size, base + 4 * size, count, top_k)
        )
    return count


@routine
def _keep_from(base, size, count, bound):
    columns, scores, kept = ints(base, count), floats(base + size, count), 0
    for i in range(count):
        if scores[i] >= bound:
            columns[kept], scores[kept] = columns[i], scores[i]
            kept += 1
    return kept


# --- selection -----------------------------------------------------------------------------------


@routine
def _kth_best(values, ones, count, k):
    """The k-th largest value; changes their order."""
    weights = floats(ones, count)
    for i in range(count):
        weights[i] = 1
    return _edge(values, ones, count, k)[0]


@routine
def _edge(values, weights, count, target):
    """The largest value at which the weights of it and of larger ones reach `target`, and the weight of the larger ones.

    The smallest value if they never do. Changes the order of both arrays. Quickselect by weight, three ways.
    """
    v, w = floats(values, count), floats(weights, count)
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
def keep_nucleus(base, size, count, target):
    """Sets the weights of candidates to 0 but for the fewest best that reach `target`, one at least."""
    scores, weights = floats(base + size, count), floats(base + 2 * size, count)
    values, masses, found = floats(base + 3 * size, count), floats(base + 4 * size, count), 0
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
    scores, weights = floats(base + size, count), floats(base + 2 * size, count)
    lowest = scores[0]
    for i in range(count):
        lowest = min(lowest, scores[i])
    if count <= FEW or lowest == 0:
        return np.float32(0), 0, 0.0
    masses, factor = doubles(base + 3 * size, NUM_BINS), np.float32(NUM_BINS - 1) / lowest
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
