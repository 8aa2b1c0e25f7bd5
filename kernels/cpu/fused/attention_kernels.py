"""The arithmetic of paged attention as kernels: scores, softmax, weighted values, and states that chunks merge into.

Layouts are drawn in attention.py. Queries, weights and scores of a tile of 1 to 6 rows lie in rows of fixed length; every
row does the same operations in the same order in all tiles.
"""

from kernels.cpu.fused.ir_tools import (
    F32,
    F32X16,
    I32,
    I32X16,
    I64,
    LANES,
    Variable,
    counted_loop,
    dot_bf16,
    element,
    exponential,
    f32,
    filled,
    fma,
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
    to_bf16,
)
from kernels.cpu.fused.layout import CHUNK_TOKENS, TILE_TOKENS

MAX_TILE_ROWS = 6
SCORE_STRIDE = CHUNK_TOKENS * 4
WEIGHT_STRIDE = CHUNK_TOKENS * 2
MAX_HEAD_DIM = 128
SCRATCH_TAIL = MAX_TILE_ROWS * (SCORE_STRIDE + WEIGHT_STRIDE + MAX_HEAD_DIM * 4 + 12) + 24
"""Bytes at the end of a thread's scratch memory that one tile of rows needs."""
_PREFETCH_TILES = 2
_UNROLL = 8
_LOWEST = -1e30


def tile_address(b, kv, table, index, tile_stride):
    """Where the tile stands that entry `index` of a table names."""
    tile = b.zext(load(b, I32, element(b, table, index, 4)), I64)
    return b.add(kv, b.mul(tile, tile_stride))


def make_scores(rows: int):
    """The kernel that multiplies `rows` queries with the keys of some tiles."""

    def scores(b, queries, keys, tile_stride, table, num_tiles, half_dim, out):
        """out [rows][256] f32, 16 scores per tile; queries [rows][half_dim] words; prefetches tiles ahead."""
        row_bytes = b.mul(half_dim, i64(4))
        with counted_loop(b, num_tiles) as index:
            tile = tile_address(b, keys, table, index, tile_stride)
            ahead = tile_address(b, keys, table, b.add(index, i64(_PREFETCH_TILES)), tile_stride)
            acc = [[Variable(b, filled(0.0)) for _ in range(2)] for _ in range(rows)]
            with counted_loop(b, b.sdiv(half_dim, i64(_UNROLL))) as step:
                sums = [[chain.get() for chain in chains] for chains in acc]
                base, next_base = (element(b, a, step, _UNROLL * 64) for a in (tile, ahead))
                words = element(b, queries, step, _UNROLL * 4)
                for pair in range(_UNROLL):
                    prefetch(b, next_base, 64 * pair)
                    key = load(b, I32X16, base, 64 * pair)
                    for r in range(rows):
                        word = load(b, I32, b.add(words, b.mul(row_bytes, i64(r))), 4 * pair)
                        sums[r][pair % 2] = dot_bf16(b, sums[r][pair % 2], key, splat(b, word))
                for chains, values in zip(acc, sums, strict=True):
                    for chain, value in zip(chains, values, strict=True):
                        chain.set(value)
            for r, (even, odd) in enumerate(acc):
                target = element(b, out, index, TILE_TOKENS * 4)
                store(b, b.fadd(even.get(), odd.get()), target, SCORE_STRIDE * r)

    return kernel(scores, f"scores_{rows}")


def make_values(rows: int, num_vectors: int):
    """The kernel that weighs `num_vectors` * 16 columns of values for `rows` rows."""

    def weigh(b, weights, values, tile_stride, table, num_tiles, row_bytes, out, out_stride):
        """out [rows][num_vectors * 16] f32 = weights (bf16 [rows][256]) times the values of some tiles."""
        acc = [[Variable(b, filled(0.0)) for _ in range(num_vectors)] for _ in range(rows)]
        with counted_loop(b, num_tiles) as index:
            tile = tile_address(b, values, table, index, tile_stride)
            ahead = tile_address(b, values, table, b.add(index, i64(_PREFETCH_TILES)), tile_stride)
            words = element(b, weights, index, TILE_TOKENS * 2)
            sums = [[variable.get() for variable in row] for row in acc]
            for pair in range(TILE_TOKENS // 2):
                row, next_row = (b.add(a, b.mul(row_bytes, i64(pair))) for a in (tile, ahead))
                columns = []
                for v in range(num_vectors):
                    prefetch(b, next_row, 64 * v)
                    columns.append(load(b, I32X16, row, 64 * v))
                for r in range(rows):
                    weight = splat(b, load(b, I32, words, WEIGHT_STRIDE * r + 4 * pair))
                    for v, column in enumerate(columns):
                        sums[r][v] = dot_bf16(b, sums[r][v], column, weight)
            for row, new in zip(acc, sums, strict=True):
                for variable, value in zip(row, new, strict=True):
                    variable.set(value)
        for r, row in enumerate(acc):
            target = b.add(out, b.mul(out_stride, i64(r)))
            for v, variable in enumerate(row):
                store(b, variable.get(), target, 64 * v)

    return kernel(weigh, f"values_{rows}_{num_vectors}")


_scores_1, _scores_2, _scores_3, _scores_4, _scores_5, _scores_6 = (
    make_scores(rows) for rows in range(1, MAX_TILE_ROWS + 1)
)
_values_1, _values_2, _values_3, _values_4, _values_5, _values_6 = (
    make_values(rows, 4) for rows in range(1, MAX_TILE_ROWS + 1)
)
_values_tail = make_values(1, 1)


def masked_score(b, scores, index, valid):
    """Which lanes of vector `index` are of the first `valid` scores, and these; LOWEST in the others."""
    lane = b.add(I32X16(list(range(LANES))), splat(b, b.trunc(b.mul(index, i64(16)), I32)))
    is_valid = b.icmp_signed("<", lane, valid)
    score = load(b, F32X16, element(b, scores, index, 64))
    return is_valid, b.select(is_valid, score, filled(_LOWEST))


@kernel
def softmax(b, scores, num_valid, num_tiles, weights, state):
    """weights (bf16) = e^(score - m) of the first num_valid scores, 0 behind them; state = (m, sum of weights) f32."""
    largest, total = Variable(b, filled(_LOWEST)), Variable(b, filled(0.0))
    valid = splat(b, b.trunc(num_valid, I32))

    with counted_loop(b, num_tiles) as index:
        largest.set(maximum(b, largest.get(), masked_score(b, scores, index, valid)[1]))
    m = max_lanes(b, largest.get())
    with counted_loop(b, num_tiles) as index:
        is_valid, score = masked_score(b, scores, index, valid)
        power = exponential(b, b.fsub(score, splat(b, m)))
        weight = b.select(is_valid, power, filled(0.0))
        total.set(b.fadd(total.get(), weight))
        store(b, to_bf16(b, weight), element(b, weights, index, 32))
    store(b, m, state)
    store(b, sum_lanes(b, total.get()), state, 4)


@kernel
def start_state(b, state, num_vectors):
    """An attention state [num_vectors * 16 sums, m, s] that has seen nothing."""
    with counted_loop(b, num_vectors) as index:
        store(b, filled(0.0), element(b, state, index, 64))
    end = element(b, state, num_vectors, 64)
    store(b, f32(_LOWEST), end)
    store(b, f32(0.0), end, 4)


@kernel
def merge_state(b, state, sums, chunk_state, num_vectors):
    """Adds a chunk (its sums, and its m and s at `chunk_state`) to a state."""
    end = element(b, state, num_vectors, 64)
    m_old, m_new = load(b, F32, end), load(b, F32, chunk_state)
    m = b.select(b.fcmp_ordered(">", m_old, m_new), m_old, m_new)
    keep, add = (exponential(b, splat(b, b.fsub(old, m))) for old in (m_old, m_new))
    with counted_loop(b, num_vectors) as index:
        target = element(b, state, index, 64)
        scaled = b.fmul(load(b, F32X16, element(b, sums, index, 64)), add)
        store(b, fma(b, load(b, F32X16, target), keep, scaled), target)
    s = fma(
        b, splat(b, load(b, F32, end, 4)), keep, b.fmul(splat(b, load(b, F32, chunk_state, 4)), add)
    )
    store(b, m, end)
    store(b, b.extract_element(s, I32(0)), end, 4)


@kernel
def finish_state(b, state, num_vectors, out):
    """out = sums / s."""
    end = element(b, state, num_vectors, 64)
    inverse = splat(b, b.fdiv(f32(1.0), load(b, F32, end, 4)))
    with counted_loop(b, num_vectors) as index:
        values = load(b, F32X16, element(b, state, index, 64))
        store(b, b.fmul(values, inverse), element(b, out, index, 64))


@routine
def score_tile(rows, q, keys, stride, table, tiles, half_dim, out):
    if rows == 1:
        _scores_1(q, keys, stride, table, tiles, half_dim, out)
    elif rows == 2:
        _scores_2(q, keys, stride, table, tiles, half_dim, out)
    elif rows == 3:
        _scores_3(q, keys, stride, table, tiles, half_dim, out)
    elif rows == 4:
        _scores_4(q, keys, stride, table, tiles, half_dim, out)
    elif rows == 5:
        _scores_5(q, keys, stride, table, tiles, half_dim, out)
    else:
        _scores_6(q, keys, stride, table, tiles, half_dim, out)


@routine
def weigh_tile(rows, p, values, stride, table, tiles, head_dim, out, ldo):
    """All columns of the values: 64 at a time, then 16 at a time."""
    row_bytes = head_dim * 4
    column = 0
    while column + 64 <= head_dim:
        v, o = values + column * 4, out + column * 4
        if rows == 1:
            _values_1(p, v, stride, table, tiles, row_bytes, o, ldo)
        elif rows == 2:
            _values_2(p, v, stride, table, tiles, row_bytes, o, ldo)
        elif rows == 3:
            _values_3(p, v, stride, table, tiles, row_bytes, o, ldo)
        elif rows == 4:
            _values_4(p, v, stride, table, tiles, row_bytes, o, ldo)
        elif rows == 5:
            _values_5(p, v, stride, table, tiles, row_bytes, o, ldo)
        else:
            _values_6(p, v, stride, table, tiles, row_bytes, o, ldo)
        column += 64
    while column < head_dim:
        for r in range(rows):
            o = out + r * ldo + column * 4
            _values_tail(
                p + r * WEIGHT_STRIDE, values + column * 4, stride, table, tiles, row_bytes, o, ldo
            )
        column += 16
