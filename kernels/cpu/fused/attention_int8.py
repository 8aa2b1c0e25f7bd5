"""The arithmetic of attention over keys and values of 8 bits, each token and KV head with its own two scales.

    tile of 16 tokens and one KV head = [keys i8: HEAD_DIM/2 pairs x 16 tokens x 2 | values i8: 8 token pairs x HEAD_DIM x 2 |
                                         bf16 scales of 16 keys | bf16 scales of 16 values]

Queries are int16 pairs with a factor per row, weights are int16 with a factor per row and chunk, so both products are exact
in int32: 64 or 128 terms of 15 + 7 bits, 256 terms of 15 + 7 bits. A token's scales are found when it is written, from its own
numbers, and never change; a scale for a whole block would depend on how far the block was filled when, and with it the answer.
"""

from kernels.cpu.fused.attention_kernels import (
    MAX_TILE_ROWS,
    SCORE_STRIDE,
    WEIGHT_STRIDE,
    masked_score,
    tile_address,
)
from kernels.cpu.fused.ir_tools import (
    F32,
    F32X16,
    I8,
    I16,
    I16X16,
    I32,
    I32X16,
    Variable,
    counted_loop,
    dot_i16,
    element,
    exponential,
    f32,
    filled,
    filled_int,
    i64,
    kernel,
    load,
    max_lanes,
    maximum,
    prefetch,
    routine,
    splat,
    store,
    sum_lanes,
    unary,
    vector,
)
from kernels.cpu.fused.layout import TILE_TOKENS

_PREFETCH_TILES = 2
_UNROLL = 8
_LARGEST_WEIGHT = 32767.0
_I8X32, _I16X32 = vector(I8, 32), vector(I16, 32)


def _widened(b, address, distance):
    """32 bytes as int16 pairs."""
    return b.bitcast(b.sext(load(b, _I8X32, address, distance), _I16X32), I32X16)


def _scales(b, address):
    """16 bfloat16 as float32."""
    return b.bitcast(b.shl(b.zext(load(b, I16X16, address), I32X16), filled_int(16)), F32X16)


def make_scores(rows: int):
    """The kernel that multiplies `rows` queries with the keys of some tiles."""

    def scores(b, queries, factors, keys, tile_stride, table, num_tiles, half_dim, out):
        """out [rows][256] f32, 16 scores per tile; queries [rows][half_dim] words, factors f32 [rows]."""
        row_bytes = b.mul(half_dim, i64(4))
        with counted_loop(b, num_tiles) as index:
            tile = tile_address(b, keys, table, index, tile_stride)
            ahead = tile_address(b, keys, table, b.add(index, i64(_PREFETCH_TILES)), tile_stride)
            acc = [[Variable(b, filled_int(0)) for _ in range(2)] for _ in range(rows)]
            with counted_loop(b, b.sdiv(half_dim, i64(_UNROLL))) as step:
                sums = [[chain.get() for chain in chains] for chains in acc]
                base, next_base = (element(b, a, step, _UNROLL * 32) for a in (tile, ahead))
                words = element(b, queries, step, _UNROLL * 4)
                for pair in range(_UNROLL):
                    if pair % 2 == 0:
                        prefetch(b, next_base, 32 * pair)
                    key = _widened(b, base, 32 * pair)
                    for r in range(rows):
                        word = load(b, I32, b.add(words, b.mul(row_bytes, i64(r))), 4 * pair)
                        sums[r][pair % 2] = dot_i16(b, sums[r][pair % 2], key, splat(b, word))
                for chains, values in zip(acc, sums, strict=True):
                    for chain, value in zip(chains, values, strict=True):
                        chain.set(value)
            key_scales = _scales(b, element(b, tile, half_dim, 64))
            for r, (even, odd) in enumerate(acc):
                dots = b.sitofp(b.add(even.get(), odd.get()), F32X16)
                factor = b.fmul(key_scales, splat(b, load(b, F32, factors, 4 * r)))
                target = element(b, out, index, TILE_TOKENS * 4)
                store(b, b.fmul(dots, factor), target, SCORE_STRIDE * r)

    return kernel(scores, f"scores_int8_{rows}")


def make_values(rows: int, num_vectors: int):
    """The kernel that weighs `num_vectors` * 16 columns of values for `rows` rows."""

    def weigh(
        b, weights, factors, values, tile_stride, table, num_tiles, row_bytes, out, out_stride
    ):
        """out [rows][num_vectors * 16] f32 = factors f32 [rows] * weights i16 [rows][256] times the values of some tiles."""
        acc = [[Variable(b, filled_int(0)) for _ in range(num_vectors)] for _ in range(rows)]
        with counted_loop(b, num_tiles) as index:
            tile = tile_address(b, values, table, index, tile_stride)
            ahead = tile_address(b, values, table, b.add(index, i64(_PREFETCH_TILES)), tile_stride)
            words = element(b, weights, index, TILE_TOKENS * 2)
            sums = [[variable.get() for variable in row] for row in acc]
            for pair in range(TILE_TOKENS // 2):
                row, next_row = (b.add(a, b.mul(row_bytes, i64(pair))) for a in (tile, ahead))
                columns = []
                for v in range(num_vectors):
                    if v % 2 == 0:
                        prefetch(b, next_row, 32 * v)
                    columns.append(_widened(b, row, 32 * v))
                for r in range(rows):
                    weight = splat(b, load(b, I32, words, WEIGHT_STRIDE * r + 4 * pair))
                    for v, column in enumerate(columns):
                        sums[r][v] = dot_i16(b, sums[r][v], column, weight)
            for row, new in zip(acc, sums, strict=True):
                for variable, value in zip(row, new, strict=True):
                    variable.set(value)
        for r, row in enumerate(acc):
            target = b.add(out, b.mul(out_stride, i64(r)))
            factor = splat(b, load(b, F32, factors, 4 * r))
            for v, variable in enumerate(row):
                store(b, b.fmul(b.sitofp(variable.get(), F32X16), factor), target, 64 * v)

    return kernel(weigh, f"values_int8_{rows}_{num_vectors}")


_scores_1, _scores_2, _scores_3, _scores_4, _scores_5, _scores_6 = (
    make_scores(rows) for rows in range(1, MAX_TILE_ROWS + 1)
)
_values_1, _values_2, _values_3, _values_4, _values_5, _values_6 = (
    make_values(rows, 4) for rows in range(1, MAX_TILE_ROWS + 1)
)
_values_tail = make_values(1, 1)


@kernel
def softmax_int8(b, scores, num_valid, num_tiles, scales, stride, table, weights, state, factor):
    """weights i16 * factor = e^(score - m) * the value's scale, 0 behind the valid ones; state = (m, sum of e^) f32.

    The products stand in `scores` afterwards. `scales` is where the values' scales of tile 0 would be.
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
        scaled = b.fmul(power, _scales(b, tile_address(b, scales, table, index, stride)))
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


@routine
def score_tile_int8(rows, q, factors, keys, stride, table, tiles, half_dim, out):
    if rows == 1:
        _scores_1(q, factors, keys, stride, table, tiles, half_dim, out)
    elif rows == 2:
        _scores_2(q, factors, keys, stride, table, tiles, half_dim, out)
    elif rows == 3:
        _scores_3(q, factors, keys, stride, table, tiles, half_dim, out)
    elif rows == 4:
        _scores_4(q, factors, keys, stride, table, tiles, half_dim, out)
    elif rows == 5:
        _scores_5(q, factors, keys, stride, table, tiles, half_dim, out)
    else:
        _scores_6(q, factors, keys, stride, table, tiles, half_dim, out)


@routine
def weigh_tile_int8(rows, p, factors, values, stride, table, tiles, head_dim, out, ldo):
    """All columns of the values: 64 at a time, then 16 at a time."""
    row_bytes = head_dim * 2
    column = 0
    while column + 64 <= head_dim:
        v, o = values + column * 2, out + column * 4
        if rows == 1:
            _values_1(p, factors, v, stride, table, tiles, row_bytes, o, ldo)
        elif rows == 2:
            _values_2(p, factors, v, stride, table, tiles, row_bytes, o, ldo)
        elif rows == 3:
            _values_3(p, factors, v, stride, table, tiles, row_bytes, o, ldo)
        elif rows == 4:
            _values_4(p, factors, v, stride, table, tiles, row_bytes, o, ldo)
        elif rows == 5:
            _values_5(p, factors, v, stride, table, tiles, row_bytes, o, ldo)
        else:
            _values_6(p, factors, v, stride, table, tiles, row_bytes, o, ldo)
        column += 64
    while column < head_dim:
        for r in range(rows):
            o, v = out + r * ldo + column * 4, values + column * 2
            w, f = p + r * WEIGHT_STRIDE, factors + 4 * r
            _values_tail(w, f, v, stride, table, tiles, row_bytes, o, ldo)
        column += 16
