"""Vector kernels that numba cannot be trusted to find: products, softmax, transposition, by address.

Strides are in bytes. A kernel does the same arithmetic for a row, whatever rows are beside it, so that results do not
depend on the composition of a batch.
"""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu import llvm

TILE = 2 * llvm.WIDTH
"""Columns of one call of a `matmul` kernel."""
MAX_ROWS = 6
"""Rows of one call of a `matmul` kernel: 12 accumulators fit the registers of every machine."""

_LANES = 4


def make_matmul(num_rows: int, accumulate: bool) -> Callable:
    """out[num_rows, TILE] = (out +) a[num_rows, size] @ b[size, TILE], all float32, by address."""

    def generate(context, builder, signature, arguments):
        a, stride_a, b, stride_b, out, stride_out, size = arguments
        row_a = [builder.add(a, builder.mul(stride_a, llvm.i64(r))) for r in range(num_rows)]
        row_out = [builder.add(out, builder.mul(stride_out, llvm.i64(r))) for r in range(num_rows)]
        columns = [llvm.i64(0), llvm.i64(4 * llvm.WIDTH)]
        cells = [(r, c) for r in range(num_rows) for c in range(2)]
        sums = {cell: cgutils.alloca_once(builder, llvm.vector_of(llvm.F32)) for cell in cells}
        for r, c in cells:
            start = llvm.constant(llvm.vector_of(llvm.F32), 0.0)
            if accumulate:
                start = llvm.load(
                    builder, llvm.vector_of(llvm.F32), builder.add(row_out[r], columns[c])
                )
            builder.store(start, sums[r, c])
        with cgutils.for_range(builder, size, intp=llvm.I64) as loop:
            row_b = builder.add(b, builder.mul(stride_b, loop.index))
            vectors = [
                llvm.load(builder, llvm.vector_of(llvm.F32), builder.add(row_b, c)) for c in columns
            ]
            offset = builder.mul(loop.index, llvm.i64(4))
            for r in range(num_rows):
                factor = llvm.broadcast(
                    builder, llvm.load(builder, llvm.F32, builder.add(row_a[r], offset))
                )
                for c in range(2):
                    product = [factor, vectors[c], builder.load(sums[r, c])]
                    builder.store(llvm.call(builder, "fmuladd", product), sums[r, c])
        for r, c in cells:
            llvm.store(builder, builder.load(sums[r, c]), builder.add(row_out[r], columns[c]))
        return context.get_dummy_value()

    @intrinsic
    def matmul(typing_context, a, stride_a, b, stride_b, out, stride_out, size):
        return types.void(*[types.int64] * 7), generate

    return matmul


# --- softmax ------------------------------------------------------------------------------------


def _reduce(b: ir.IRBuilder, x: ir.Value, combine: Callable) -> ir.Value:
    """Combine the elements of a vector pairwise."""
    half = llvm.WIDTH // 2
    while half:
        x = combine(x, llvm.shuffle(b, x, x, [(i + half) % llvm.WIDTH for i in range(llvm.WIDTH)]))
        half //= 2
    return b.extract_element(x, ir.Constant(llvm.I32, 0))


@intrinsic
def softmax_row(typing_context, row, num_vectors, maximum, total):
    """Scores in a row of num_vectors * WIDTH become 2 ** (score - maximum); maximum and sum go to two addresses.

    At least one score is finite; a score of -infinity gives exactly 0.
    """

    def generate(context, builder, signature, arguments):
        row, num_vectors, maximum, total = arguments
        vector = llvm.vector_of(llvm.F32)

        def larger(x, y):
            return builder.select(builder.fcmp_ordered(">", x, y), x, y)

        def each_vector(state, step):
            with cgutils.for_range(builder, num_vectors, intp=llvm.I64) as loop:
                address = builder.add(row, builder.mul(loop.index, llvm.i64(4 * llvm.WIDTH)))
                builder.store(step(address, builder.load(state)), state)

        def exponential(address, so_far):
            result = llvm.exp2(builder, builder.fsub(llvm.load(builder, vector, address), highest))
            llvm.store(builder, result, address)
            return builder.fadd(so_far, result)

        state = cgutils.alloca_once_value(builder, llvm.constant(vector, float("-inf")))
        each_vector(state, lambda address, best: larger(llvm.load(builder, vector, address), best))
        best = _reduce(builder, builder.load(state), larger)
        highest = llvm.broadcast(builder, best)
        builder.store(llvm.constant(vector, 0.0), state)
        each_vector(state, exponential)
        llvm.store(builder, best, maximum)
        llvm.store(builder, _reduce(builder, builder.load(state), builder.fadd), total)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


# --- transposition ------------------------------------------------------------------------------


def _transpose(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """WIDTH vectors of WIDTH 32-bit elements: in quads inside lanes of four first, then whole lanes."""
    lanes = range(0, llvm.WIDTH, _LANES)
    low = [i for lane in lanes for i in (lane, llvm.WIDTH + lane, lane + 1, llvm.WIDTH + lane + 1)]
    high = [i + 2 for i in low]
    low_pair = [
        i for lane in lanes for i in (lane, lane + 1, llvm.WIDTH + lane, llvm.WIDTH + lane + 1)
    ]
    high_pair = [i + 2 for i in low_pair]
    quads = []
    for q in range(0, llvm.WIDTH, _LANES):
        r0, r1, r2, r3 = rows[q : q + _LANES]
        pairs = [(llvm.shuffle(b, r0, r1, m), llvm.shuffle(b, r2, r3, m)) for m in (low, high)]
        quads.append([llvm.shuffle(b, *pair, m) for pair in pairs for m in (low_pair, high_pair)])
    columns = [_transpose_lanes(b, [quad[j] for quad in quads]) for j in range(_LANES)]
    return [columns[j][lane] for lane in range(llvm.WIDTH // _LANES) for j in range(_LANES)]


def _transpose_lanes(b: ir.IRBuilder, vectors: list[ir.Value]) -> list[ir.Value]:
    """Vector v of the result holds lane v of every vector given."""
    if len(vectors) == 1:
        return vectors
    pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
    halves = []
    for parity in range(2):
        lanes = range(parity, 2 * llvm.WIDTH // _LANES, 2)
        indices = [_LANES * lane + i for lane in lanes for i in range(_LANES)]
        halves.append(_transpose_lanes(b, [llvm.shuffle(b, x, y, indices) for x, y in pairs]))
    return [vector for both in zip(*halves, strict=True) for vector in both]


def make_pack_columns(dtype: int) -> Callable:
    """out[i, j] = float32(row j [i]) for WIDTH rows given by the addresses in `rows`.

    Takes WIDTH elements of each row if they have 32 bits, twice as many if they have 16.
    """

    def unpack(b, vector):
        if dtype == llvm.FLOAT32:
            return [b.bitcast(vector, llvm.vector_of(llvm.F32))]
        upper = b.lshr(vector, llvm.constant(vector.type, 16))
        return [
            llvm.widen(b, b.trunc(half, llvm.vector_of(llvm.I16)), dtype)
            for half in (vector, upper)
        ]

    def generate(context, builder, signature, arguments):
        rows, offset, out, stride_out = arguments
        starts = [
            llvm.load(builder, llvm.I64, builder.add(rows, llvm.i64(8 * j)), 8)
            for j in range(llvm.WIDTH)
        ]
        vectors = [
            llvm.load(builder, llvm.vector_of(llvm.I32), builder.add(s, offset), 2) for s in starts
        ]
        unpacked = [x for v in _transpose(builder, vectors) for x in unpack(builder, v)]
        for i, vector in enumerate(unpacked):
            llvm.store(builder, vector, builder.add(out, builder.mul(stride_out, llvm.i64(i))))
        return context.get_dummy_value()

    @intrinsic
    def pack_columns(typing_context, rows, offset, out, stride_out):
        return types.void(*[types.int64] * 4), generate

    return pack_columns
