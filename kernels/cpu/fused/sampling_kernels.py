"""Passes over a row of logits as kernels: maxima and masses of tiles of 256 columns, and exponentials of few scores.

A score is (logit - the row's largest logit) / temperature, so the best has 0 and a weight e^score is at most 1. Nothing
behind the last column is read; columns of the last tile that are not there count as LOWEST.
"""

from kernels.cpu.ir_tools import (
    F32,
    F32X16,
    I1,
    I16,
    I32,
    I32X16,
    I64,
    LANES,
    Variable,
    counted_loop,
    element,
    filled,
    fma,
    i64,
    kernel,
    load,
    masked_load_f32,
    max_lanes,
    maximum,
    natural_exponential,
    splat,
    store,
    sum_lanes,
    vector,
)

TILE = 256
LOWEST = -3e38
_BITS = vector(I1)
_VECTORS = TILE // LANES


def _columns(b, row, first, num_columns, otherwise):
    """16 columns from `first` on, `otherwise` where there are none."""
    lane = b.add(I32X16(list(range(LANES))), splat(b, b.trunc(first, I32)))
    mask = b.icmp_signed("<", lane, splat(b, b.trunc(num_columns, I32)))
    return masked_load_f32(b, element(b, row, first, 4), mask, filled(otherwise)), mask


@kernel
def keep_allowed(b, row, num_columns, mask, kept):
    """kept f32: logits whose bit of `mask` (column 0 lowest) is set, and LOWEST, or NaN for one that is not finite.

    A multiple of 16 columns is written, and as many bits are read.
    """
    num_vectors = b.sdiv(b.add(num_columns, i64(LANES - 1)), i64(LANES))
    with counted_loop(b, num_vectors) as index:
        values, _ = _columns(b, row, b.mul(index, i64(LANES)), num_columns, LOWEST)
        is_allowed = b.bitcast(load(b, I16, element(b, mask, index, 2)), _BITS)
        others = fma(b, values, filled(0.0), filled(LOWEST))
        store(b, b.select(is_allowed, values, others), element(b, kept, index, 64))


@kernel
def tile_maxima(b, row, num_columns, num_tiles, maxima):
    """maxima [num_tiles] f32 of a row's tiles; NaN for a tile with a logit that is not finite."""
    with counted_loop(b, num_tiles) as tile:
        largest, doubt = Variable(b, filled(LOWEST)), Variable(b, filled(0.0))
        with counted_loop(b, i64(_VECTORS)) as index:
            first = b.add(b.mul(tile, i64(TILE)), b.mul(index, i64(LANES)))
            values, _ = _columns(b, row, first, num_columns, LOWEST)
            largest.set(maximum(b, values, largest.get()))
            doubt.set(b.fadd(doubt.get(), b.fmul(values, filled(0.0))))
        total = b.fadd(max_lanes(b, largest.get()), sum_lanes(b, doubt.get()))
        store(b, total, element(b, maxima, tile, 4))


@kernel
def tile_masses(b, row, num_columns, num_tiles, largest: float, inverse: float, masses):
    """masses [num_tiles] f32: sums of e^((logit - largest) * inverse) over the tiles of a row."""
    with counted_loop(b, num_tiles) as tile:
        total = Variable(b, filled(0.0))
        with counted_loop(b, i64(_VECTORS)) as index:
            first = b.add(b.mul(tile, i64(TILE)), b.mul(index, i64(LANES)))
            values, mask = _columns(b, row, first, num_columns, LOWEST)
            scores = b.fmul(b.fsub(values, splat(b, largest)), splat(b, inverse))
            weights = b.select(mask, natural_exponential(b, scores), filled(0.0))
            total.set(b.fadd(total.get(), weights))
        store(b, sum_lanes(b, total.get()), element(b, masses, tile, 4))


@kernel
def weigh_scores(b, scores, count, weights):
    """weights = e^scores, both f32 with room up to a multiple of 16."""
    num_vectors = b.sdiv(b.add(count, i64(LANES - 1)), i64(LANES))
    with counted_loop(b, num_vectors) as index:
        values = load(b, F32X16, element(b, scores, index, 64))
        store(b, natural_exponential(b, values), element(b, weights, index, 64))


@kernel
def count_better(b, row, num_columns, token, counts):
    """counts [1] i64: columns with a larger logit than column `token`, and those before it with an equal one."""
    own = splat(b, load(b, F32, element(b, row, token, 4)))
    total = Variable(b, I32X16([0] * LANES))
    num_vectors = b.sdiv(b.add(num_columns, i64(LANES - 1)), i64(LANES))
    with counted_loop(b, num_vectors) as index:
        first = b.mul(index, i64(LANES))
        values, mask = _columns(b, row, first, num_columns, LOWEST)
        lane = b.add(I32X16(list(range(LANES))), splat(b, b.trunc(first, I32)))
        is_before = b.icmp_signed("<", lane, splat(b, b.trunc(token, I32)))
        is_tie = b.and_(b.fcmp_ordered("==", values, own), is_before)
        is_better = b.and_(mask, b.or_(b.fcmp_ordered(">", values, own), is_tie))
        total.set(b.add(total.get(), b.zext(is_better, I32X16)))
    store(b, b.sext(sum_lanes(b, total.get()), I64), counts)
