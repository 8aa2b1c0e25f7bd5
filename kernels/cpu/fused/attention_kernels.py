"""What attention does between the products (attention_products.py): softmax, and states that chunks merge into.

Layouts are drawn in attention.py. Weights and scores of 1 to 6 rows lie in rows of fixed length; every row does the same
operations in the same order.
"""

from kernels.cpu.fused.instructions import to_bf16
from kernels.cpu.fused.layout import CHUNK_TILES, CHUNK_TOKENS
from kernels.cpu.ir_tools import (
    F32,
    F32X16,
    I32,
    I32X16,
    I64,
    LANES,
    Variable,
    counted_loop,
    element,
    exponential,
    f32,
    falling_exponential,
    filled,
    fma,
    i64,
    kernel,
    load,
    max_lanes,
    maximum,
    splat,
    store,
    sum_lanes,
)

MAX_TILE_ROWS = 6
SCORE_STRIDE = CHUNK_TOKENS * 4
WEIGHT_STRIDE = CHUNK_TOKENS * 2
MAX_HEAD_DIM = 128
TILES_BYTES = 2 * CHUNK_TILES * 8
"""Addresses of the tiles of two chunks."""
_ROW_BYTES = SCORE_STRIDE + WEIGHT_STRIDE + MAX_HEAD_DIM * 4 + 12
SCRATCH_TAIL = TILES_BYTES + MAX_TILE_ROWS * _ROW_BYTES + 24
"""Bytes at the end of a thread's scratch memory that attention needs for a chunk and one tile of rows."""
_LOWEST = -1e30


def tile_address(b, tiles, index):
    """Entry `index` of a list of addresses."""
    return load(b, I64, element(b, tiles, index, 8))


def masked_score(b, scores, index, valid):
    """Which lanes of vector `index` are of the first `valid` scores, and these; LOWEST in the others."""
    lane = b.add(I32X16(list(range(LANES))), splat(b, b.trunc(b.mul(index, i64(16)), I32)))
    is_valid = b.icmp_signed("<", lane, valid)
    score = load(b, F32X16, element(b, scores, index, 64))
    return is_valid, b.select(is_valid, score, filled(_LOWEST))


@kernel
def softmax(b, scores, num_valid, num_tiles, weights, state):
    """weights (bf16) = e^(score - m) of the first num_valid scores, 0 behind them; state = (m, sum of weights) f32.

    Tiles whose scores are all valid, which are most, are gone through without a look at what is valid.
    """
    largest, total = Variable(b, filled(_LOWEST)), Variable(b, filled(0.0))
    valid = splat(b, b.trunc(num_valid, I32))
    num_whole = b.sdiv(num_valid, i64(LANES))
    num_others = b.sub(num_tiles, num_whole)

    with counted_loop(b, num_whole) as index:
        score = load(b, F32X16, element(b, scores, index, 64))
        largest.set(maximum(b, score, largest.get()))
    with counted_loop(b, num_others) as other:
        index = b.add(num_whole, other)
        largest.set(maximum(b, largest.get(), masked_score(b, scores, index, valid)[1]))
    m = max_lanes(b, largest.get())

    def weigh(index, weight):
        total.set(b.fadd(total.get(), weight))
        store(b, to_bf16(b, weight), element(b, weights, index, 32))

    with counted_loop(b, num_whole) as index:
        score = load(b, F32X16, element(b, scores, index, 64))
        weigh(index, falling_exponential(b, b.fsub(score, splat(b, m))))
    with counted_loop(b, num_others) as other:
        index = b.add(num_whole, other)
        is_valid, score = masked_score(b, scores, index, valid)
        power = falling_exponential(b, b.fsub(score, splat(b, m)))
        weigh(index, b.select(is_valid, power, filled(0.0)))
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
