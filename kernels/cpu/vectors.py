"""Vector arithmetic that numba cannot be trusted to find: small kernels written as LLVM vectors, used by address.

The IR names no instruction set: LLVM lowers <16 x float> or <8 x float> to whatever the machine has. Addresses are
int64; strides are in bytes. Every function here does the same arithmetic for a row, whatever rows are beside it, so
that results do not depend on the composition of a batch.
"""

import math
from collections.abc import Callable, Sequence

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH = 16 if llvmlite.binding.get_host_cpu_features().get("avx512f", False) else 8
"""Floats of one vector."""
TILE = 2 * WIDTH
"""Columns of one call of a `matmul` kernel."""
MAX_ROWS = 6
"""Rows of one call of a `matmul` kernel: 12 accumulators fit the registers of every machine."""

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F16, _F32 = ir.HalfType(), ir.FloatType()
_LANES = 4
_EXP2_COEFFICIENTS = [math.log(2) ** n / math.factorial(n) for n in range(7)]


def _vector(element: ir.Type, count: int = WIDTH) -> ir.VectorType:
    return ir.VectorType(element, count)


def _i64(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _splat_constant(like: ir.Type, value: float) -> ir.Constant:
    if isinstance(like, ir.VectorType):
        return ir.Constant(like, [value] * like.count)
    return ir.Constant(like, value)


def _like(shape: ir.Type, element: ir.Type) -> ir.Type:
    """The type with the shape of `shape` (a vector or a scalar) and another element."""
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def _load(b: ir.IRBuilder, type_: ir.Type, address: ir.Value, align: int = 4) -> ir.Value:
    return b.load(b.inttoptr(address, type_.as_pointer()), align=align)


def _store(b: ir.IRBuilder, value: ir.Value, address: ir.Value, align: int = 4) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=align)


def _broadcast(b: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    undefined = ir.Constant(_vector(scalar.type), ir.Undefined)
    single = b.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return b.shuffle_vector(single, undefined, ir.Constant(_vector(_I32), [0] * WIDTH))


def _shuffle(b: ir.IRBuilder, x: ir.Value, y: ir.Value, indices: Sequence[int]) -> ir.Value:
    return b.shuffle_vector(x, y, ir.Constant(_vector(_I32, len(indices)), list(indices)))


def _call(b: ir.IRBuilder, name: str, arguments: list[ir.Value]) -> ir.Value:
    """Call an overloaded LLVM intrinsic that returns the type of its first argument."""
    type_ = arguments[0].type
    suffix = f"v{type_.count}f32" if isinstance(type_, ir.VectorType) else "f32"
    signature = ir.FunctionType(type_, [x.type for x in arguments])
    function = cgutils.get_or_insert_function(b.module, signature, f"llvm.{name}.{suffix}")
    return b.call(function, arguments)


# --- numbers ------------------------------------------------------------------------------------


def _widen(b: ir.IRBuilder, bits: ir.Value, dtype: int) -> ir.Value:
    """16-bit floats, given as integers, to float32."""
    if dtype == FLOAT16:
        return b.fpext(b.bitcast(bits, _like(bits.type, _F16)), _like(bits.type, _F32))
    integers = b.zext(bits, _like(bits.type, _I32))
    return b.bitcast(b.shl(integers, _splat_constant(integers.type, 16)), _like(bits.type, _F32))


def _narrow(b: ir.IRBuilder, x: ir.Value, dtype: int) -> ir.Value:
    """float32 to 16-bit floats as integers, rounded to nearest, ties to even."""
    if dtype == FLOAT16:
        return b.bitcast(b.fptrunc(x, _like(x.type, _F16)), _like(x.type, _I16))
    bits = b.bitcast(x, _like(x.type, _I32))
    upper = b.lshr(bits, _splat_constant(bits.type, 16))
    odd = b.and_(upper, _splat_constant(bits.type, 1))
    rounded = b.add(b.add(bits, _splat_constant(bits.type, 0x7FFF)), odd)
    quiet_nan = _splat_constant(bits.type, 0x7FC00000)
    result = b.select(b.fcmp_unordered("uno", x, x), quiet_nan, rounded)
    return b.trunc(b.lshr(result, _splat_constant(bits.type, 16)), _like(x.type, _I16))


def _exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2 ** x to about 1e-7: 0 below -126, and 2 ** 127 above 127."""
    type_ = x.type
    tiny = b.fcmp_ordered("<=", x, _splat_constant(type_, -126.0))
    x = b.select(tiny, _splat_constant(type_, -126.0), x)
    large = _splat_constant(type_, 127.0)
    x = b.select(b.fcmp_ordered(">", x, large), large, x)
    whole = _call(b, "rint", [x])
    fraction = b.fsub(x, whole)
    result = _splat_constant(type_, _EXP2_COEFFICIENTS[-1])
    for coefficient in reversed(_EXP2_COEFFICIENTS[:-1]):
        result = _call(b, "fmuladd", [result, fraction, _splat_constant(type_, coefficient)])
    integer_type = _like(type_, _I32)
    exponent = b.shl(b.fptosi(whole, integer_type), _splat_constant(integer_type, 23))
    result = b.bitcast(b.add(b.bitcast(result, integer_type), exponent), type_)
    return b.select(tiny, _splat_constant(type_, 0.0), result)


def _scalar_intrinsic(argument, result, emit: Callable) -> Callable:
    @intrinsic
    def scalar(typing_context, x):
        def generate(context, builder, signature, arguments):
            return emit(builder, arguments[0])

        return result(argument), generate

    return scalar


bfloat16_to_float32 = _scalar_intrinsic(
    types.uint16, types.float32, lambda b, x: _widen(b, x, BFLOAT16)
)
float16_to_float32 = _scalar_intrinsic(
    types.uint16, types.float32, lambda b, x: _widen(b, x, FLOAT16)
)
float32_to_bfloat16 = _scalar_intrinsic(
    types.float32, types.uint16, lambda b, x: _narrow(b, x, BFLOAT16)
)
float32_to_float16 = _scalar_intrinsic(
    types.float32, types.uint16, lambda b, x: _narrow(b, x, FLOAT16)
)
exp2 = _scalar_intrinsic(types.float32, types.float32, _exp2)


# --- memory -------------------------------------------------------------------------------------


@intrinsic
def pointer(typing_context, address):
    """An address as the pointer that numba.carray takes."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def fetch_add(typing_context, address, amount):
    """Add to the int64 at an address, atomically; returns the value before."""

    def generate(context, builder, signature, arguments):
        target = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.atomic_rmw("add", target, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def prefetch(typing_context, address):
    """Ask for the cache line of an address that will be read."""

    def generate(context, builder, signature, arguments):
        pointer_type = cgutils.voidptr_t
        signature = ir.FunctionType(ir.VoidType(), [pointer_type, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
        flags = [ir.Constant(_I32, flag) for flag in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(arguments[0], pointer_type), *flags])
        return context.get_dummy_value()

    return types.void(types.int64), generate


# --- products -----------------------------------------------------------------------------------


def make_matmul(num_rows: int, accumulate: bool) -> Callable:
    """out[num_rows, TILE] = (out +) a[num_rows, size] @ b[size, TILE], all float32, by address."""

    def generate(context, builder, signature, arguments):
        a, stride_a, b, stride_b, out, stride_out, size = arguments
        row_a = [builder.add(a, builder.mul(stride_a, _i64(r))) for r in range(num_rows)]
        row_out = [builder.add(out, builder.mul(stride_out, _i64(r))) for r in range(num_rows)]
        columns = [_i64(0), _i64(4 * WIDTH)]
        cells = [(r, c) for r in range(num_rows) for c in range(2)]
        sums = {cell: cgutils.alloca_once(builder, _vector(_F32)) for cell in cells}
        for r, c in cells:
            start = _splat_constant(_vector(_F32), 0.0)
            if accumulate:
                start = _load(builder, _vector(_F32), builder.add(row_out[r], columns[c]))
            builder.store(start, sums[r, c])
        with cgutils.for_range(builder, size, intp=_I64) as loop:
            row_b = builder.add(b, builder.mul(stride_b, loop.index))
            vectors = [_load(builder, _vector(_F32), builder.add(row_b, c)) for c in columns]
            offset = builder.mul(loop.index, _i64(4))
            for r in range(num_rows):
                factor = _broadcast(builder, _load(builder, _F32, builder.add(row_a[r], offset)))
                for c in range(2):
                    product = [factor, vectors[c], builder.load(sums[r, c])]
                    builder.store(_call(builder, "fmuladd", product), sums[r, c])
        for r, c in cells:
            _store(builder, builder.load(sums[r, c]), builder.add(row_out[r], columns[c]))
        return context.get_dummy_value()

    @intrinsic
    def matmul(typing_context, a, stride_a, b, stride_b, out, stride_out, size):
        return types.void(*[types.int64] * 7), generate

    return matmul


# --- softmax ------------------------------------------------------------------------------------


def _reduce(b: ir.IRBuilder, x: ir.Value, combine: Callable) -> ir.Value:
    """Combine the elements of a vector pairwise."""
    half = WIDTH // 2
    while half:
        x = combine(x, _shuffle(b, x, x, [(i + half) % WIDTH for i in range(WIDTH)]))
        half //= 2
    return b.extract_element(x, ir.Constant(_I32, 0))


@intrinsic
def softmax_row(typing_context, row, num_vectors, maximum, total):
    """Scores in a row of num_vectors * WIDTH become 2 ** (score - maximum); maximum and sum go to two addresses.

    At least one score is finite; a score of -infinity gives exactly 0.
    """

    def generate(context, builder, signature, arguments):
        row, num_vectors, maximum, total = arguments
        vector = _vector(_F32)

        def larger(x, y):
            return builder.select(builder.fcmp_ordered(">", x, y), x, y)

        def each_vector(state, step):
            with cgutils.for_range(builder, num_vectors, intp=_I64) as loop:
                address = builder.add(row, builder.mul(loop.index, _i64(4 * WIDTH)))
                builder.store(step(address, builder.load(state)), state)

        def exponential(address, so_far):
            result = _exp2(builder, builder.fsub(_load(builder, vector, address), highest))
            _store(builder, result, address)
            return builder.fadd(so_far, result)

        state = cgutils.alloca_once_value(builder, _splat_constant(vector, float("-inf")))
        each_vector(state, lambda address, best: larger(_load(builder, vector, address), best))
        best = _reduce(builder, builder.load(state), larger)
        highest = _broadcast(builder, best)
        builder.store(_splat_constant(vector, 0.0), state)
        each_vector(state, exponential)
        _store(builder, best, maximum)
        _store(builder, _reduce(builder, builder.load(state), builder.fadd), total)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


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
        pairs = [(_shuffle(b, r0, r1, m), _shuffle(b, r2, r3, m)) for m in (low, high)]
        quads.append([_shuffle(b, *pair, m) for pair in pairs for m in (low_pair, high_pair)])
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
        halves.append(_transpose_lanes(b, [_shuffle(b, x, y, indices) for x, y in pairs]))
    return [vector for both in zip(*halves, strict=True) for vector in both]


def make_pack_columns(dtype: int) -> Callable:
    """out[i, j] = float32(row j [i]) for WIDTH rows given by the addresses in `rows`.

    Takes WIDTH elements of each row if they have 32 bits, twice as many if they have 16.
    """

    def unpack(b, vector):
        if dtype == FLOAT32:
            return [b.bitcast(vector, _vector(_F32))]
        upper = b.lshr(vector, _splat_constant(vector.type, 16))
        return [_widen(b, b.trunc(half, _vector(_I16)), dtype) for half in (vector, upper)]

    def generate(context, builder, signature, arguments):
        rows, offset, out, stride_out = arguments
        starts = [_load(builder, _I64, builder.add(rows, _i64(8 * j)), 8) for j in range(WIDTH)]
        vectors = [_load(builder, _vector(_I32), builder.add(s, offset), 2) for s in starts]
        unpacked = [x for v in _transpose(builder, vectors) for x in unpack(builder, v)]
        for i, vector in enumerate(unpacked):
            _store(builder, vector, builder.add(out, builder.mul(stride_out, _i64(i))))
        return context.get_dummy_value()

    @intrinsic
    def pack_columns(typing_context, rows, offset, out, stride_out):
        return types.void(*[types.int64] * 4), generate

    return pack_columns
