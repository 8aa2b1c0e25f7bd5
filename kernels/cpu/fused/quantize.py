"""Activations as 8-bit numbers with a scale for every 16, fused with the operation that produces them.

quantised row: numbers  int8 [K], and per group of 32 one 28-byte record
    scale      f32 [2]   value = scale * number, for the first and the last 16
    shift      i32 [2]   -128 * (sum of the 16 numbers)         start value of the dot with weights stored as number + 128
    factor     i16 [2]   scale / unit, rounded                  for weights of 4 bits, see linear.py
    sum        f32       sum of factor * number over the group  for weights with a minimum
    unit       f32       of the first record: the row's largest scale / 32767
    The numbers of a group lie in words of 4, one of the first 16 and one of the last 16 by turns.

A row is settled when all of it is quantised: only then its unit is known. A factor is off by half a unit, which is little
for a large scale, and for a small one little beside what the row's largest numbers lose by being rounded.

A scale for 32 would halve the factors and double the divergence from float32: one large value takes the others' precision.
"""

from llvmlite import ir

from kernels.cpu.fused.instructions import add_dot_u4, begin_dot_u4, end_dot_u4
from kernels.cpu.ir_tools import (
    F32,
    F32X16,
    I8X16,
    I16,
    I32,
    I32X16,
    LANES,
    Variable,
    counted_loop,
    element,
    exponential,
    f32,
    filled,
    filled_int,
    fma,
    i64,
    kernel,
    load,
    max_lanes,
    maximum,
    shuffle,
    splat,
    store,
    sum_lanes,
    unary,
    vector,
)

GROUP = 32
RECORD_BYTES = 28
SHIFT_PLACE, FACTOR_PLACE, SUM_PLACE, UNIT_PLACE = 8, 16, 20, 24
_MAX_FACTOR = 32767
_BY_TURNS = [16 * part + 4 * word + i for word in range(4) for part in range(2) for i in range(4)]
_ROUNDER = 12582912.0
_ROUNDER_BITS = 0x4B400000
"""1.5 * 2^23: a float32 of this size has no fraction, and its lowest byte is that of the integer added to it."""


def quantize_groups(b, make_vectors, numbers, records, num_groups):
    """Quantises groups two at a time, whose chains of operations fill each other's gaps, and a last one alone.

    `make_vectors(group)` gives the two vectors of 16 of a group, whose index it gets.
    """

    def quantize(first, count):
        indices = [b.add(first, i64(i)) for i in range(count)]
        vectors = [values for index in indices for values in make_vectors(index)]
        row, record = element(b, numbers, first, GROUP), element(b, records, first, RECORD_BYTES)
        _emit_quantize(b, vectors, row, record)

    with counted_loop(b, b.lshr(num_groups, i64(1))) as pair:
        quantize(b.mul(pair, i64(2)), 2)
    with counted_loop(b, b.and_(num_groups, i64(1))) as _:
        quantize(b.sub(num_groups, i64(1)), 1)


def _emit_quantize(b, vectors, numbers, record):
    """One or two groups: scale = largest magnitude / 127, numbers rounded to nearest even."""
    largest = _largest_of_each(b, [unary(b, "fabs", values) for values in vectors])
    is_positive = b.fcmp_ordered(">", largest, filled(0.0, 4))
    inverses = b.select(is_positive, b.fdiv(filled(127.0, 4), largest), filled(0.0, 4))
    parts = []
    for index, values in enumerate(vectors):
        inverse = splat(b, b.extract_element(inverses, I32(index)))
        rounded = fma(b, values, inverse, filled(_ROUNDER))
        parts.append(b.trunc(b.bitcast(rounded, I32X16), I8X16))
    num_groups = len(vectors) // 2
    parts += [ir.Constant(I8X16, [0] * LANES)] * (4 - len(parts))
    groups = [shuffle(b, *parts[k : k + 2], _BY_TURNS) for k in (0, 2)]
    for index in range(num_groups):
        store(b, groups[index], numbers, GROUP * index)
    scales = b.fmul(largest, filled(1 / 127, 4))
    _store_records(b, scales, _sum_of_each(b, groups), record, num_groups)


def _store_records(b, scales, totals, record, num_groups):
    """Scales and shifts of one or two groups, from scales and sums of numbers of each 16."""
    shifts = b.mul(totals, filled_int(-128, 4))
    for group in range(num_groups):
        place, lanes = RECORD_BYTES * group, (2 * group, 2 * group + 1)
        store(b, shuffle(b, scales, scales, lanes), record, place)
        store(b, shuffle(b, shifts, shifts, lanes), record, place + SHIFT_PLACE)


def _sum_of_each(b, groups):
    """The sums of each 16 numbers of two groups, as four lanes."""
    words = b.bitcast(shuffle(b, *groups, range(2 * GROUP)), I32X16)
    sums = end_dot_u4(b, add_dot_u4(b, begin_dot_u4(), filled_int(0x01010101), words))
    for distance in (4, 2):
        sums = b.add(sums, shuffle(b, sums, sums, [i ^ distance for i in range(LANES)]))
    return shuffle(b, sums, sums, (0, 1, 8, 9))


def _largest_of_each(b, vectors):
    """The largest lane of each of two or four vectors, as four lanes."""

    def folded(x, y, size):
        """Larger ones of both halves of each stretch of `size` lanes of x, then of y."""
        starts = range(0, 2 * LANES, size)
        low, high = (
            shuffle(b, x, y, [s + k + i for s in starts for i in range(size // 2)])
            for k in (0, size // 2)
        )
        return maximum(b, low, high)

    halves = [folded(*vectors[k : k + 2], LANES) for k in range(0, len(vectors), 2)]
    values = folded(halves[0], halves[-1], LANES // 2)
    for distance in (2, 1):
        others = shuffle(b, values, values, [i ^ distance for i in range(LANES)])
        values = maximum(b, values, others)
    return shuffle(b, values, values, (0, 4, 8, 12))


@kernel
def settle_row(b, records, num_groups):
    """Finds the unit of a row whose scales and shifts are there, then the factors and sums of its groups."""
    pair = vector(F32, 2)
    largest = Variable(b, filled(0.0, 2))
    with counted_loop(b, num_groups) as group:
        scales = load(b, pair, element(b, records, group, RECORD_BYTES))
        largest.set(maximum(b, scales, largest.get()))
    most = max_lanes(b, largest.get())
    store(b, b.fmul(most, f32(1 / _MAX_FACTOR)), records, UNIT_PLACE)
    is_positive = b.fcmp_ordered(">", most, f32(0.0))
    inverse = b.select(is_positive, b.fdiv(f32(_MAX_FACTOR), most), f32(0.0))
    with counted_loop(b, num_groups) as group:
        record = element(b, records, group, RECORD_BYTES)
        rounded = fma(b, load(b, pair, record), splat(b, inverse, 2), filled(_ROUNDER, 2))
        factors = b.sub(b.bitcast(rounded, vector(I32, 2)), filled_int(_ROUNDER_BITS, 2))
        store(b, b.trunc(factors, vector(I16, 2)), record, FACTOR_PLACE)
        totals = b.ashr(load(b, vector(I32, 2), record, SHIFT_PLACE), filled_int(7, 2))
        total = sum_lanes(b, b.mul(totals, factors))
        store(b, b.sitofp(b.neg(total), F32), record, SUM_PLACE)


@kernel
def quantize_row(b, source, numbers, records, num_groups):
    """Quantises float32 values [num_groups * 32]."""

    def values(group):
        row = element(b, source, group, 128)
        return [load(b, F32X16, row, d) for d in (0, 64)]

    quantize_groups(b, values, numbers, records, num_groups)


@kernel
def add_norm_quantize(b, hidden, delta, weight, numbers, records, num_groups, epsilon: float):
    """hidden += delta; then hidden * weight / sqrt(mean(hidden^2) + epsilon), quantised. RMSNorm, arXiv:1910.07467."""
    squares = [Variable(b, filled(0.0)) for _ in range(2)]
    with counted_loop(b, num_groups) as group:
        row, added = element(b, hidden, group, 128), element(b, delta, group, 128)
        for half in range(2):
            total = b.fadd(load(b, F32X16, row, 64 * half), load(b, F32X16, added, 64 * half))
            store(b, total, row, 64 * half)
            squares[half].set(fma(b, total, total, squares[half].get()))
    total = sum_lanes(b, b.fadd(squares[0].get(), squares[1].get()))
    length = b.sitofp(b.mul(num_groups, i64(GROUP)), F32)
    root = unary(b, "sqrt", b.fadd(b.fdiv(total, length), epsilon))
    inverse = splat(b, b.fdiv(f32(1.0), root))

    def normed(group):
        row, factors = element(b, hidden, group, 128), element(b, weight, group, 128)
        return [
            b.fmul(b.fmul(load(b, F32X16, row, d), inverse), load(b, F32X16, factors, d))
            for d in (0, 64)
        ]

    quantize_groups(b, normed, numbers, records, num_groups)


@kernel
def silu_multiply_quantize(b, gate_up, numbers, records, num_groups):
    """gate / (1 + e^-gate) * up, quantised; gate_up alternates 16 gates and their 16 ups. SwiGLU, arXiv:2002.05202."""

    def activated(group):
        source = element(b, gate_up, group, 256)
        halves = []
        for half in range(2):
            gate = load(b, F32X16, source, 128 * half)
            up = load(b, F32X16, source, 128 * half + 64)
            divisor = b.fadd(exponential(b, b.fsub(filled(0.0), gate)), filled(1.0))
            halves.append(b.fdiv(b.fmul(gate, up), divisor))
        return halves

    quantize_groups(b, activated, numbers, records, num_groups)
