"""Vector kernels that numba cannot be trusted to find: products, softmax, transposition, by address.

Strides are in bytes. A kernel does the same arithmetic for a row, whatever rows are beside it, so that results do not
depend on the composition of a batch.
"""

from collections.abc import Callable

from llvmlite import ir

from kernels.cpu import ir_tools, llvm
from kernels.cpu.ir_tools import (
    F32,
    I16,
    I32,
    I64,
    Variable,
    counted_loop,
    element,
    filled,
    i64,
    instruction,
    load,
    shuffle,
    splat,
    store,
    vector,
)
from kernels.cpu.llvm import FLOAT32, WIDTH

TILE = 2 * WIDTH
"""Columns of one call of a `matmul` kernel."""
MAX_ROWS = 6
"""Rows of one call of a `matmul` kernel: 12 accumulators fit the registers of every machine."""

_LANES = 4
_VECTOR, _VECTOR_BYTES = vector(F32, WIDTH), 4 * WIDTH


def make_matmul(num_rows: int, accumulate: bool) -> Callable:
    """out[num_rows, TILE] = (out +) a[num_rows, size] @ b[size, TILE], all float32, by address."""

    def matmul(b, a, stride_a, matrix, stride_b, out, stride_out, size):
        row_a = [b.add(a, b.mul(stride_a, i64(r))) for r in range(num_rows)]
        row_out = [b.add(out, b.mul(stride_out, i64(r))) for r in range(num_rows)]
        columns = (0, _VECTOR_BYTES)
        cells = [(r, c) for r in range(num_rows) for c in range(2)]
        sums = {}
        for r, c in cells:
            start = load(b, _VECTOR, row_out[r], columns[c]) if accumulate else filled(0.0, WIDTH)
            sums[r, c] = Variable(b, start)
        with counted_loop(b, size) as index:
            row = b.add(matrix, b.mul(stride_b, index))
            vectors = [load(b, _VECTOR, row, column) for column in columns]
            for r in range(num_rows):
                factor = splat(b, load(b, F32, element(b, row_a[r], index, 4)), WIDTH)
                for c in range(2):
                    product = [factor, vectors[c], sums[r, c].get()]
                    sums[r, c].set(llvm.call(b, "fmuladd", product))
        for r, c in cells:
            store(b, sums[r, c].get(), row_out[r], columns[c])

    return instruction(matmul)


# --- softmax ------------------------------------------------------------------------------------


def _reduce(b: ir.IRBuilder, x: ir.Value, combine: Callable) -> ir.Value:
    """Combine the elements of a vector pairwise."""
    half = WIDTH // 2
    while half:
        x = combine(x, shuffle(b, x, x, [(i + half) % WIDTH for i in range(WIDTH)]))
        half //= 2
    return b.extract_element(x, ir.Constant(I32, 0))


@instruction
def softmax_row(b, row, num_vectors, maximum, total):
    """Scores in a row of num_vectors * WIDTH become 2 ** (score - maximum); maximum and sum go to two addresses.

    At least one score is finite; a score of -infinity gives exactly 0.
    """
    largest = Variable(b, filled(float("-inf"), WIDTH))
    with counted_loop(b, num_vectors) as index:
        scores = load(b, _VECTOR, element(b, row, index, _VECTOR_BYTES))
        largest.set(ir_tools.maximum(b, scores, largest.get()))
    best = _reduce(b, largest.get(), lambda x, y: ir_tools.maximum(b, x, y))
    highest, sums = splat(b, best, WIDTH), Variable(b, filled(0.0, WIDTH))
    with counted_loop(b, num_vectors) as index:
        address = element(b, row, index, _VECTOR_BYTES)
        power = llvm.exp2(b, b.fsub(load(b, _VECTOR, address), highest))
        store(b, power, address)
        sums.set(b.fadd(sums.get(), power))
    store(b, best, maximum)
    store(b, _reduce(b, sums.get(), b.fadd), total)


@instruction
def cap_row(b, row, num_vectors, factor: float):
    """Numbers x in a row of num_vectors * WIDTH become factor / (2 ** x + 1).

    With x = 2 log2(e) score / cap and factor = -2 log2(e) cap that is log2(e) cap tanh(score / cap) but for a constant, which
    softmax does not see.
    """
    factors, ones = splat(b, factor, WIDTH), filled(1.0, WIDTH)
    with counted_loop(b, num_vectors) as index:
        address = element(b, row, index, _VECTOR_BYTES)
        power = llvm.exp2(b, load(b, _VECTOR, address))
        store(b, b.fdiv(factors, b.fadd(power, ones)), address)


# --- transposition ------------------------------------------------------------------------------


def _transpose(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """WIDTH vectors of WIDTH 32-bit elements: in quads inside lanes of four first, then whole lanes."""
    lanes = range(0, WIDTH, _LANES)
    low = [i for lane in lanes for i in (lane, WIDTH + lane, lane + 1, WIDTH + lane + 1)]
    high = [i + 2 for i in low]
    low_pair = [i for lane in lanes for i in (lane, lane + 1, WIDTH + lane, WIDTH + lane + 1)]
    high_pair = [i + 2 for i in low_pair]
    quads = []
    for q in range(0, WIDTH, _LANES):
        r0, r1, r2, r3 = rows[q : q + _LANES]
        pairs = [(shuffle(b, r0, r1, m), shuffle(b, r2, r3, m)) for m in (low, high)]
        quads.append([shuffle(b, *pair, m) for pair in pairs for m in (low_pair, high_pair)])
    columns = [_transpose_lanes(b, [quad[j] for quad in quads]) for j in range(_LANES)]
    return [columns[j][lane] for lane in range(WIDTH // _LANES) for j in range(_LANES)]


def _transpose_lanes(b: ir.IRBuilder, vectors: list[ir.Value]) -> list[ir.Value]:
    """Vector v of the result holds lane v of every vector given."""
    if len(vectors) == 1:
        return vectors
    pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
    halves = []
    for parity in range(2):
        lanes = range(parity, 2 * WIDTH // _LANES, 2)
        indices = [_LANES * lane + i for lane in lanes for i in range(_LANES)]
        halves.append(_transpose_lanes(b, [shuffle(b, x, y, indices) for x, y in pairs]))
    return [vector for both in zip(*halves, strict=True) for vector in both]


def make_pack_columns(dtype: int) -> Callable:
    """out[i, j] = float32(row j [i]) for WIDTH rows given by the addresses in `rows`.

    Takes WIDTH elements of each row if they have 32 bits, twice as many if they have 16.
    """

    def unpack(b, words):
        if dtype == FLOAT32:
            return [b.bitcast(words, _VECTOR)]
        upper = b.lshr(words, llvm.constant(words.type, 16))
        halves = (b.trunc(half, vector(I16, WIDTH)) for half in (words, upper))
        return [llvm.widen(b, half, dtype) for half in halves]

    def pack_columns(b, rows, offset, out, stride_out):
        starts = [load(b, I64, rows, 8 * j) for j in range(WIDTH)]
        words = [load(b, vector(I32, WIDTH), start, offset) for start in starts]
        unpacked = [x for column in _transpose(b, words) for x in unpack(b, column)]
        for i, values in enumerate(unpacked):
            store(b, values, b.add(out, b.mul(stride_out, i64(i))))

    return instruction(pack_columns)
