"""What attention over keys and values of 8 bits does between its products (attention_products.py), each token and KV head with its own two scales.

    tile of 16 tokens and one KV head = [keys i8: HEAD_DIM/2 pairs x 16 tokens x 2 | values i8: 8 token pairs x HEAD_DIM x 2 |
                                         bf16 scales of 16 keys | bf16 scales of 16 values]

Queries are int16 pairs with a factor per row, weights are int16 with a factor per row and chunk, so both products are exact
in int32: 64 or 128 terms of 15 + 7 bits, 256 terms of 15 + 7 bits. A token's scales are found when it is written, from its own
numbers, and never change; a scale for a whole block would depend on how far the block was filled when, and with it the answer.
"""

from kernels.cpu.fused.attention_kernels import masked_score, tile_address
from kernels.cpu.ir_tools import (
    F32X16,
    I16X16,
    I32,
    I32X16,
    Variable,
    counted_loop,
    element,
    exponential,
    f32,
    filled,
    filled_int,
    kernel,
    load,
    max_lanes,
    maximum,
    splat,
    store,
    sum_lanes,
    unary,
)

_LARGEST_WEIGHT = 32767.0


def bf16_scales(b, address):
    """16 bfloat16 as float32."""
    return b.bitcast(b.shl(b.zext(load(b, I16X16, address), I32X16), filled_int(16)), F32X16)


@kernel
def softmax_int8(b, scores, num_valid, tiles, num_tiles, scales, weights, state, factor):
    """weights i16 * factor = e^(score - m) * the value's scale, 0 behind the valid ones; state = (m, sum of e^) f32.

    The products stand in `scores` afterwards. `tiles` are addresses, `scales` is where in a tile its values' scales begin.
    """
    largest, total, most = (Variable(b, filled(start)) for start in (-1e30, 0.0, 0.0))
    valid = splat(b, b.trunc(num_valid, I32))
    with counted_loop(b, num_tiles) as index:
        largest.set(maximum(b, largest.get(), masked_score(b, scores, index, valid)[1]))
    m = max_lanes(b, largest.get())
    with counted_loop(b, num_tiles) as index:
        is_valid, score = masked_score(b, scores, index, valid)
        power = b.select(is_valid, exponential(b, b.fsub(score, splat(b, m))), filled(0.0))
        total.set(b.fadd(total.get(), power))
        scaled = b.fmul(power, bf16_scales(b, b.add(tile_address(b, tiles, index), scales)))
        weight = b.select(is_valid, scaled, filled(0.0))
        most.set(maximum(b, most.get(), weight))
        store(b, weight, element(b, scores, index, 64))
    top = max_lanes(b, most.get())
    is_positive = b.fcmp_ordered(">", top, f32(0.0))
    inverse = splat(b, b.select(is_positive, b.fdiv(f32(_LARGEST_WEIGHT), top), f32(0.0)))
    with counted_loop(b, num_tiles) as index:
        scaled = b.fmul(load(b, F32X16, element(b, scores, index, 64)), inverse)
        integers = b.fptosi(unary(b, "nearbyint", scaled), I32X16)
        store(b, b.trunc(integers, I16X16), element(b, weights, index, 32))
    store(b, m, state)
    store(b, sum_lanes(b, total.get()), state, 4)
    store(b, b.fmul(top, f32(1 / _LARGEST_WEIGHT)), factor)
