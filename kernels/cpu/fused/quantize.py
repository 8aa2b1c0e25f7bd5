"""Activations as 8-bit numbers with a scale for every 16, fused with the operation that produces them.

quantised row: numbers  int8 [K], and per group of 32 one 20-byte record
    scale      f32 [2]   value = scale * number, for the first and the last 16
    scaled_sum f32       sum of the 32 values                   for weights with a minimum
    shift      i32 [2]   -128 * (sum of the 16 numbers)         start value of the dot with weights stored as number + 128

A scale for 32 would halve the factors and double the divergence from float32: one large value takes the others' precision.
"""

from kernels.cpu.ir_tools import (
    F32,
    F32X16,
    I8X16,
    I32X16,
    Variable,
    counted_loop,
    element,
    exponential,
    f32,
    filled,
    fma,
    i64,
    kernel,
    load,
    max_lanes,
    splat,
    store,
    sum_lanes,
    unary,
)

GROUP = 32
RECORD_BYTES, SHIFT_PLACE = 20, 12


def emit_quantize_group(b, first, second, numbers, record):
    """Quantises two vectors of 16: scale = largest magnitude / 127, numbers rounded to nearest even."""
    scaled_sum = None
    for half, values in enumerate((first, second)):
        largest = max_lanes(b, unary(b, "fabs", values))
        scale = b.fmul(largest, f32(1 / 127))
        is_positive = b.fcmp_ordered(">", largest, f32(0.0))
        inverse = splat(b, b.select(is_positive, b.fdiv(f32(127.0), largest), f32(0.0)))
        integers = b.fptosi(unary(b, "nearbyint", b.fmul(values, inverse)), I32X16)
        store(b, b.trunc(integers, I8X16), numbers, 16 * half)
        total = sum_lanes(b, integers)
        own_sum = b.fmul(scale, b.sitofp(total, F32))
        scaled_sum = own_sum if scaled_sum is None else b.fadd(scaled_sum, own_sum)
        store(b, scale, record, 4 * half)
        store(b, b.mul(total, total.type(-128)), record, SHIFT_PLACE + 4 * half)
    store(b, scaled_sum, record, 8)


@kernel
def quantize_row(b, source, numbers, records, num_groups):
    """Quantises float32 values [num_groups * 32]."""
    with counted_loop(b, num_groups) as group:
        values = element(b, source, group, 128)
        emit_quantize_group(
            b,
            load(b, F32X16, values),
            load(b, F32X16, values, 64),
            element(b, numbers, group, GROUP),
            element(b, records, group, RECORD_BYTES),
        )


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
    with counted_loop(b, num_groups) as group:
        row, factors = element(b, hidden, group, 128), element(b, weight, group, 128)
        halves = [
            b.fmul(b.fmul(load(b, F32X16, row, d), inverse), load(b, F32X16, factors, d))
            for d in (0, 64)
        ]
        emit_quantize_group(
            b,
            *halves,
            element(b, numbers, group, GROUP),
            element(b, records, group, RECORD_BYTES),
        )


@kernel
def silu_multiply_quantize(b, gate_up, numbers, records, num_groups):
    """gate / (1 + e^-gate) * up, quantised; gate_up alternates 16 gates and their 16 ups. SwiGLU, arXiv:2002.05202."""
    with counted_loop(b, num_groups) as group:
        source = element(b, gate_up, group, 256)
        halves = []
        for half in range(2):
            gate = load(b, F32X16, source, 128 * half)
            up = load(b, F32X16, source, 128 * half + 64)
            divisor = b.fadd(exponential(b, b.fsub(filled(0.0), gate)), filled(1.0))
            halves.append(b.fdiv(b.fmul(gate, up), divisor))
        emit_quantize_group(
            b,
            *halves,
            element(b, numbers, group, GROUP),
            element(b, records, group, RECORD_BYTES),
        )
