"""The products of attention: queries with keys, weights with values, for 1 to 6 rows and the tiles of a chunk.

A chunk's tiles are given as addresses, int64 [2 * CHUNK_TILES]: those of the chunk, and behind them those of the chunk that
this thread takes next. While keys are read, the values of the same tiles are fetched; while values are read, the next
chunk's keys: memory is never idle, and nothing waits for it but the first chunk of a step.

    tile = [keys: HEAD_DIM/2 pairs x 16 tokens x 2 | values: 8 token pairs x HEAD_DIM x 2 | what the format adds]
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from kernels.cpu.fused.attention_int8 import bf16_scales
from kernels.cpu.fused.attention_kernels import (
    MAX_TILE_ROWS,
    SCORE_STRIDE,
    WEIGHT_STRIDE,
    tile_address,
)
from kernels.cpu.fused.instructions import dot_bf16, dot_i16
from kernels.cpu.fused.layout import CHUNK_TILES, TILE_TOKENS
from kernels.cpu.ir_tools import (
    F32,
    F32X16,
    FAR,
    I8,
    I16,
    I32,
    I32X16,
    Variable,
    counted_loop,
    element,
    filled,
    filled_int,
    i64,
    kernel,
    load,
    offset,
    prefetch,
    routine,
    splat,
    store,
    vector,
)

_PREFETCH_TILES = 2
_UNROLL = 8
_PAIRS = TILE_TOKENS // 2
_LINE = 64


@dataclass(frozen=True)
class Format:
    """How a KV pool keeps numbers, and the arithmetic on pairs of them.

    `load(b, address, distance)` gives 16 pairs as words for `dot`; `to_score(b, sum, tile, half_dim, factor)` and
    `to_value(b, sum, factor)` make float32 of sums, `factor` being where the row's factor stands.
    """

    name: str
    pair_bytes: int
    zero: ir.Constant
    load: Callable[..., Any]
    dot: Callable[..., Any]
    add: Callable[..., Any]
    to_score: Callable[..., Any]
    to_value: Callable[..., Any]

    @property
    def vector_bytes(self) -> int:
        """Bytes of 16 pairs."""
        return 16 * self.pair_bytes


def _widened(b, address, distance):
    """32 bytes as int16 pairs."""
    return b.bitcast(b.sext(load(b, vector(I8, 32), address, distance), vector(I16, 32)), I32X16)


def _scaled_score(b, dots, tile, half_dim, factor):
    """Exact dots times the keys' scales, which follow keys and values, times the row's factor."""
    scales = bf16_scales(b, element(b, tile, half_dim, 64))
    return b.fmul(b.sitofp(dots, F32X16), b.fmul(scales, splat(b, load(b, F32, factor))))


BFLOAT16 = Format(
    name="bf16",
    pair_bytes=4,
    zero=filled(0.0),
    load=lambda b, address, distance: load(b, I32X16, address, distance),
    dot=dot_bf16,
    add=lambda b, x, y: b.fadd(x, y),
    to_score=lambda b, score, tile, half_dim, factor: score,
    to_value=lambda b, value, factor: value,
)
INT8 = Format(
    name="int8",
    pair_bytes=2,
    zero=filled_int(0),
    load=_widened,
    dot=dot_i16,
    add=lambda b, x, y: b.add(x, y),
    to_score=_scaled_score,
    to_value=lambda b, sums, factor: b.fmul(b.sitofp(sums, F32X16), splat(b, load(b, F32, factor))),
)


def make_scores(form: Format, rows: int):
    """The kernel that multiplies `rows` queries with the keys of some tiles."""
    size = form.vector_bytes

    def scores(b, queries, factors, tiles, num_tiles, half_dim, out):
        """out [rows][256] f32, 16 scores per tile; queries [rows][half_dim] words; factors f32 [rows], if the format has them."""
        row_bytes = b.mul(half_dim, i64(4))
        key_bytes = b.mul(half_dim, i64(size))
        with counted_loop(b, num_tiles) as index:
            tile = tile_address(b, tiles, index)
            ahead = tile_address(b, tiles, b.add(index, i64(_PREFETCH_TILES)))
            acc = [[Variable(b, form.zero) for _ in range(2)] for _ in range(rows)]
            with counted_loop(b, b.sdiv(half_dim, i64(_UNROLL))) as step:
                sums = [[chain.get() for chain in chains] for chains in acc]
                base, next_keys = (element(b, a, step, _UNROLL * size) for a in (tile, ahead))
                next_values = b.add(next_keys, key_bytes)
                words = element(b, queries, step, _UNROLL * 4)
                for pair in range(_UNROLL):
                    if pair * size % _LINE == 0:
                        prefetch(b, next_keys, size * pair)
                        prefetch(b, next_values, size * pair, FAR)
                    key = form.load(b, base, size * pair)
                    for r in range(rows):
                        word = load(b, I32, b.add(words, b.mul(row_bytes, i64(r))), 4 * pair)
                        sums[r][pair % 2] = form.dot(b, sums[r][pair % 2], key, splat(b, word))
                for chains, values in zip(acc, sums, strict=True):
                    for chain, value in zip(chains, values, strict=True):
                        chain.set(value)
            for r, (even, odd) in enumerate(acc):
                total = form.add(b, even.get(), odd.get())
                score = form.to_score(b, total, tile, half_dim, offset(b, factors, 4 * r))
                store(b, score, element(b, out, index, TILE_TOKENS * 4), SCORE_STRIDE * r)

    return kernel(scores, f"scores_{form.name}_{rows}")


def make_values(form: Format, rows: int, num_vectors: int):
    """The kernel that weighs `num_vectors` * 16 columns of values for `rows` rows."""
    size = form.vector_bytes

    def weigh(b, weights, factors, tiles, num_tiles, row_bytes, column, out, out_stride):
        """out [rows][num_vectors * 16] f32 = weights (16 bits, [rows][256]) times the values from byte `column` of their rows on."""
        acc = [[Variable(b, form.zero) for _ in range(num_vectors)] for _ in range(rows)]
        first = b.add(b.mul(row_bytes, i64(_PAIRS)), column)
        with counted_loop(b, num_tiles) as index:
            values = b.add(tile_address(b, tiles, index), first)
            next_keys = b.add(tile_address(b, tiles, b.add(index, i64(CHUNK_TILES))), column)
            words = element(b, weights, index, TILE_TOKENS * 2)
            sums = [[variable.get() for variable in row] for row in acc]
            for pair in range(_PAIRS):
                row, next_row = (b.add(a, b.mul(row_bytes, i64(pair))) for a in (values, next_keys))
                columns = []
                for v in range(num_vectors):
                    if v * size % _LINE == 0:
                        prefetch(b, next_row, size * v, FAR)
                    columns.append(form.load(b, row, size * v))
                for r in range(rows):
                    weight = splat(b, load(b, I32, words, WEIGHT_STRIDE * r + 4 * pair))
                    for v, numbers in enumerate(columns):
                        sums[r][v] = form.dot(b, sums[r][v], numbers, weight)
            for row, new in zip(acc, sums, strict=True):
                for variable, value in zip(row, new, strict=True):
                    variable.set(value)
        for r, row in enumerate(acc):
            target = b.add(out, b.mul(out_stride, i64(r)))
            for v, variable in enumerate(row):
                value = form.to_value(b, variable.get(), offset(b, factors, 4 * r))
                store(b, value, target, 64 * v)

    return kernel(weigh, f"values_{form.name}_{rows}_{num_vectors}")


def make_score_tile(form: Format):
    """The routine that scores `rows` rows, 1 to 6."""
    k1, k2, k3, k4, k5, k6 = (make_scores(form, rows) for rows in range(1, MAX_TILE_ROWS + 1))

    @routine
    def score_tile(rows, q, factors, tiles, num_tiles, half_dim, out):
        if rows == 1:
            k1(q, factors, tiles, num_tiles, half_dim, out)
        elif rows == 2:
            k2(q, factors, tiles, num_tiles, half_dim, out)
        elif rows == 3:
            k3(q, factors, tiles, num_tiles, half_dim, out)
        elif rows == 4:
            k4(q, factors, tiles, num_tiles, half_dim, out)
        elif rows == 5:
            k5(q, factors, tiles, num_tiles, half_dim, out)
        else:
            k6(q, factors, tiles, num_tiles, half_dim, out)

    return score_tile


def make_weigh_tile(form: Format):
    """The routine that weighs all columns of the values for `rows` rows, 1 to 6: 64 at a time, then 16 at a time."""
    k1, k2, k3, k4, k5, k6 = (make_values(form, rows, 4) for rows in range(1, MAX_TILE_ROWS + 1))
    tail, pair_bytes = make_values(form, 1, 1), form.pair_bytes

    @routine
    def weigh_tile(rows, p, factors, tiles, num_tiles, head_dim, out, ldo):
        row_bytes = head_dim * pair_bytes
        column = 0
        while column + 64 <= head_dim:
            v, o = column * pair_bytes, out + column * 4
            if rows == 1:
                k1(p, factors, tiles, num_tiles, row_bytes, v, o, ldo)
            elif rows == 2:
                k2(p, factors, tiles, num_tiles, row_bytes, v, o, ldo)
            elif rows == 3:
                k3(p, factors, tiles, num_tiles, row_bytes, v, o, ldo)
            elif rows == 4:
                k4(p, factors, tiles, num_tiles, row_bytes, v, o, ldo)
            elif rows == 5:
                k5(p, factors, tiles, num_tiles, row_bytes, v, o, ldo)
            else:
                k6(p, factors, tiles, num_tiles, row_bytes, v, o, ldo)
            column += 64
        while column < head_dim:
            for r in range(rows):
                v, o = column * pair_bytes, out + r * ldo + column * 4
                w, f = p + r * WEIGHT_STRIDE, factors + 4 * r
                tail(w, f, tiles, num_tiles, row_bytes, v, o, ldo)
            column += 16

    return weigh_tile


score_tile, score_tile_int8 = make_score_tile(BFLOAT16), make_score_tile(INT8)
weigh_tile, weigh_tile_int8 = make_weigh_tile(BFLOAT16), make_weigh_tile(INT8)
