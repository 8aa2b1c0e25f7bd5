"""What happens to a head between its projection and attention: bias, norm, rotary embedding, and the store to paged KV.

Rotary embedding (arXiv:2104.09864) turns the pair (x[i], x[i + D/2]) by the angle of its position. Queries and keys are
kept as bfloat16 pairs in that order, so a pair is one 32-bit word and nothing has to be interleaved.
"""

from kernels.cpu.fused.instructions import masked_store, to_bf16
from kernels.cpu.fused.layout import TILE_TOKENS
from kernels.cpu.ir_tools import (
    F32,
    F32X8,
    F32X16,
    I32,
    I32X8,
    I32X16,
    Variable,
    counted_loop,
    element,
    f32,
    filled,
    fma,
    i64,
    kernel,
    load,
    routine,
    splat,
    store,
    sum_lanes,
    unary,
    vector,
)
from kernels.cpu.ir_tools import I16 as _I16
from kernels.cpu.memory import fill_zero, load_i32, store_i32

_EVEN_LANES = 0x55555555


@kernel
def add_bias(b, values, bias, num_vectors):
    """values += bias, both float32 [num_vectors * 16]."""
    with counted_loop(b, num_vectors) as index:
        target = element(b, values, index, 64)
        addend = load(b, F32X16, element(b, bias, index, 64))
        store(b, b.fadd(load(b, F32X16, target), addend), target)


@kernel
def norm_head(b, values, weight, num_vectors, epsilon: float):
    """values * weight / sqrt(mean(values^2) + epsilon) in place, float32 [num_vectors * 16] (Qwen3's q and k norms)."""
    squares = Variable(b, filled(0.0))
    with counted_loop(b, num_vectors) as index:
        x = load(b, F32X16, element(b, values, index, 64))
        squares.set(fma(b, x, x, squares.get()))
    length = b.sitofp(b.mul(num_vectors, i64(16)), F32)
    mean = b.fdiv(sum_lanes(b, squares.get()), length)
    inverse = splat(b, b.fdiv(f32(1.0), unary(b, "sqrt", b.fadd(mean, epsilon))))
    with counted_loop(b, num_vectors) as index:
        target = element(b, values, index, 64)
        factor = load(b, F32X16, element(b, weight, index, 64))
        store(b, b.fmul(b.fmul(load(b, F32X16, target), inverse), factor), target)


@kernel
def rotate_to_pairs(b, values, cosines, sines, half_dim, scale: float, pairs):
    """Rotates one head (float32 [2 * half_dim]), scales it and stores half_dim words of two bfloat16."""
    factor = splat(b, scale, 8)
    num_steps = b.sdiv(half_dim, i64(8))
    with counted_loop(b, num_steps) as index:
        near = element(b, values, index, 32)
        x1, x2 = load(b, F32X8, near), load(b, F32X8, element(b, near, half_dim, 4))
        cos, sin = (load(b, F32X8, element(b, table, index, 32)) for table in (cosines, sines))
        y1 = b.fmul(b.fsub(b.fmul(x1, cos), b.fmul(x2, sin)), factor)
        y2 = b.fmul(b.fadd(b.fmul(x2, cos), b.fmul(x1, sin)), factor)
        low, high = (b.zext(to_bf16(b, y), I32X8) for y in (y1, y2))
        high = b.shl(high, I32X8([16] * 8))
        store(b, b.or_(low, high), element(b, pairs, index, 32))


@kernel
def store_value_lane(b, values, row, lane, num_vectors):
    """Writes bfloat16 of float32 [num_vectors * 16] into lane 0 or 1 of the words of a value row."""
    shift = b.trunc(b.mul(lane, i64(16)), I32)
    mask = b.shl(I32(_EVEN_LANES), b.trunc(lane, I32))
    with counted_loop(b, num_vectors) as index:
        bits = b.zext(to_bf16(b, load(b, F32X16, element(b, values, index, 64))), I32X16)
        words = b.bitcast(b.shl(bits, splat(b, shift)), vector(_I16, 32))
        masked_store(b, words, element(b, row, index, 64), mask)


@kernel
def clear_value_lane(b, row, num_vectors):
    """Sets lane 1 of the words of a value row to 0."""
    mask = I32(_EVEN_LANES << 1 & 0xFFFFFFFF)
    zeros = b.bitcast(I32X16([0] * 16), vector(_I16, 32))
    with counted_loop(b, num_vectors) as index:
        masked_store(b, zeros, element(b, row, index, 64), mask)


@routine
def store_key(pairs, half_dim, tile, slot):
    """Writes a key's words into column `slot` of a key tile [half_dim][16] words."""
    for i in range(half_dim):
        store_i32(tile + (i * TILE_TOKENS + slot) * 4, load_i32(pairs + 4 * i))


@routine
def store_value(values, head_dim, tile, slot, clears):
    """Writes a value into slot `slot` of a value tile [8][head_dim] words; `clears`: and 0 into the slots behind it.

    What stands behind the last token is multiplied by a probability of 0, so it must be finite.
    """
    row_bytes = head_dim * 4
    row = tile + slot // 2 * row_bytes
    store_value_lane(values, row, slot % 2, head_dim // 16)
    if clears:
        if slot % 2 == 0:
            clear_value_lane(row, head_dim // 16)
        fill_zero(row + row_bytes, (TILE_TOKENS // 2 - 1 - slot // 2) * row_bytes)
