"""Heads on their way to 8-bit keys and values: rotation, and rounding by scales of their own. Layout in attention_int8.py."""

from llvmlite import ir

from kernels.cpu.fused.instructions import masked_store, to_bf16
from kernels.cpu.fused.layout import TILE_TOKENS
from kernels.cpu.ir_tools import (
    F32,
    F32X8,
    F32X16,
    I8,
    I8X16,
    I16,
    I16X16,
    I32,
    I32X8,
    Variable,
    counted_loop,
    element,
    f32,
    filled,
    i64,
    kernel,
    load,
    max_lanes,
    maximum,
    routine,
    splat,
    store,
    unary,
    vector,
)
from kernels.cpu.memory import load_i16, store_i16

_EVEN_LANES = 0x55555555
_I16X8 = vector(I16, 8)


@kernel
def rotate_head(b, values, cosines, sines, half_dim, scale: float, out, largest):
    """out f32 [2 * half_dim] = one head rotated and scaled; largest f32 [1] = the largest magnitude in it."""
    factor, most = splat(b, scale, 8), Variable(b, filled(0.0, 8))
    with counted_loop(b, b.sdiv(half_dim, i64(8))) as index:
        near, target = element(b, values, index, 32), element(b, out, index, 32)
        x1, x2 = load(b, F32X8, near), load(b, F32X8, element(b, near, half_dim, 4))
        cos, sin = (load(b, F32X8, element(b, table, index, 32)) for table in (cosines, sines))
        y1 = b.fmul(b.fsub(b.fmul(x1, cos), b.fmul(x2, sin)), factor)
        y2 = b.fmul(b.fadd(b.fmul(x2, cos), b.fmul(x1, sin)), factor)
        store(b, y1, target)
        store(b, y2, element(b, target, half_dim, 4))
        for y in (y1, y2):
            most.set(maximum(b, most.get(), unary(b, "fabs", y)))
    store(b, max_lanes(b, most.get()), largest)


def _rounded(b, values, inverse):
    kind = vector(I32, values.type.count)
    return b.fptosi(unary(b, "nearbyint", b.fmul(values, inverse)), kind)


def _pairs(b, rotated, half_dim, index, inverse):
    """8 pairs of the rotated head as two vectors of integers."""
    near = element(b, rotated, index, 32)
    return (
        _rounded(b, load(b, F32X8, address), inverse)
        for address in (near, element(b, near, half_dim, 4))
    )


@kernel
def pack_query(b, rotated, half_dim, largest, words, factor):
    """words i32 [half_dim]: pairs of int16; factor f32 [1]: what a step of them is worth."""
    top = load(b, F32, largest)
    is_positive = b.fcmp_ordered(">", top, f32(0.0))
    inverse = splat(b, b.select(is_positive, b.fdiv(f32(32767.0), top), f32(0.0)), 8)
    with counted_loop(b, b.sdiv(half_dim, i64(8))) as index:
        low, high = _pairs(b, rotated, half_dim, index, inverse)
        word = b.or_(b.and_(low, I32X8([0xFFFF] * 8)), b.shl(high, I32X8([16] * 8)))
        store(b, word, element(b, words, index, 32))
    store(b, b.fmul(top, f32(1 / 32767.0)), factor)


def _scale_of(b, top, lanes):
    """A bfloat16 scale for numbers up to `top` (f32), as bits, and a vector of its inverse."""
    scale = splat(b, b.fmul(top, f32(1 / 127.0)), 8)
    bits = b.extract_element(to_bf16(b, scale), I32(0))
    rounded = b.bitcast(b.shl(b.zext(bits, I32), I32(16)), F32)
    is_positive = b.fcmp_ordered(">", rounded, f32(0.0))
    inverse = b.select(is_positive, b.fdiv(f32(1.0), rounded), f32(0.0))
    return bits, splat(b, inverse, lanes)


@kernel
def pack_key(b, rotated, half_dim, largest, words, scale):
    """words i16 [half_dim]: pairs of int8; scale bf16 [1]."""
    bits, inverse = _scale_of(b, load(b, F32, largest), 8)
    with counted_loop(b, b.sdiv(half_dim, i64(8))) as index:
        low, high = _pairs(b, rotated, half_dim, index, inverse)
        word = b.or_(b.and_(low, I32X8([0xFF] * 8)), b.shl(high, I32X8([8] * 8)))
        store(b, b.trunc(word, _I16X8), element(b, words, index, 16))
    store(b, bits, scale)


@kernel
def pack_value(b, values, num_vectors, row, lane, scale):
    """Writes int8 of float32 [num_vectors * 16] into lane 0 or 1 of the pairs of a value row; scale bf16 [1]."""
    most = Variable(b, filled(0.0))
    with counted_loop(b, num_vectors) as index:
        magnitude = unary(b, "fabs", load(b, F32X16, element(b, values, index, 64)))
        most.set(maximum(b, most.get(), magnitude))
    bits, inverse = _scale_of(b, max_lanes(b, most.get()), 16)
    shift = splat(b, b.trunc(b.mul(lane, i64(8)), I16))
    mask = b.shl(ir.Constant(I32, _EVEN_LANES), b.trunc(lane, I32))
    with counted_loop(b, num_vectors) as index:
        numbers = _rounded(b, load(b, F32X16, element(b, values, index, 64)), inverse)
        pairs = b.shl(b.zext(b.trunc(numbers, I8X16), I16X16), shift)
        masked_store(b, b.bitcast(pairs, vector(I8, 32)), element(b, row, index, 32), mask)
    store(b, bits, scale)


@routine
def store_key_int8(words, half_dim, tile, slot):
    """Writes a key's pairs into column `slot` of a key tile [half_dim][16] of int16."""
    for i in range(half_dim):
        store_i16(tile + (i * TILE_TOKENS + slot) * 2, load_i16(words + 2 * i))
