"""Building blocks for kernels written as LLVM IR: vector types, loads, stores, arithmetic, and two ways into numba.

A kernel is a Python function `emit(builder, *values)` that appends IR. `kernel` makes it a function of its own, compiled
once by machine_code.py and called by name; `instruction` pastes its IR where it is called, for what is a few instructions.
Arguments are int64 (addresses, counts, strides in bytes) or, annotated `float`, float32. Every kernel does the same
arithmetic in the same order for a row, whatever rows are beside it: nothing here is marked "fast", so LLVM must not
reassociate.
"""

import inspect
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
LANES = 16

routine = numba.njit(
    nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)
"""Decorator of the functions that call kernels: compiled into the step, never by themselves."""

formula = numba.njit(nogil=True, error_model="numpy", inline="always")
"""Decorator of an expression with a name: it becomes part of the functions that use it, before they are compiled."""


class _BFloat16(ir.Type):
    """LLVM's `bfloat`, which llvmlite has no class for; only ever reached by bitcast."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat16)

    def __hash__(self) -> int:
        return hash("bfloat")


def vector(element: ir.Type, lanes: int = LANES) -> ir.VectorType:
    """The type of `lanes` elements."""
    return ir.VectorType(element, lanes)


BF16 = _BFloat16()
F32X16, I32X16, I16X16, F16X16 = vector(F32), vector(I32), vector(I16), vector(F16)
I8X16, I16X32, BF16X32 = vector(I8), vector(I16, 32), vector(BF16, 32)
F32X8, I32X8 = vector(F32, 8), vector(I32, 8)


@dataclass(frozen=True)
class Kernel:
    """A kernel's symbol, the types of its arguments, and the function that appends its body."""

    name: str
    argument_types: tuple[ir.Type, ...]
    emit: Callable[..., None]


KERNELS: list[Kernel] = []
"""Every kernel of the modules imported so far, for machine_code.py."""


def kernel(emit: Callable[..., None], name: str | None = None) -> Any:
    """Decorator: a function of compiled code that calls the kernel by its symbol; it returns nothing."""
    parameters = list(inspect.signature(emit).parameters.values())[1:]
    kinds = tuple(F32 if parameter.annotation is float else I64 for parameter in parameters)
    entry = Kernel(f"pageturn_{name or emit.__name__}", kinds, emit)
    KERNELS.append(entry)

    def append_call(b, *values):
        call(b, entry.name, ir.VoidType(), list(kinds), list(values))

    return _void_intrinsic(append_call, emit)


def instruction(emit: Callable[..., None]) -> Any:
    """Decorator: IR pasted into the calling function; it returns nothing."""
    return _void_intrinsic(emit, emit)


def function(returns: types.Type) -> Callable[[Callable[..., ir.Value]], Any]:
    """Like `instruction`, for IR that produces a value of type `returns`."""

    def decorate(emit: Callable[..., ir.Value]) -> Any:
        def define(_typing_context, *arguments):
            def generate(_context, builder, _signature, values):
                return emit(builder, *values)

            return returns(*map(_numba_type, arguments)), generate

        return _intrinsic(define, emit)

    return decorate


def _void_intrinsic(append: Callable[..., None], emit: Callable[..., None]) -> Any:
    def define(_typing_context, *arguments):
        def generate(context, builder, _signature, values):
            append(builder, *values)
            return context.get_dummy_value()

        return types.void(*map(_numba_type, arguments)), generate

    return _intrinsic(define, emit)


def _intrinsic(define: Callable[..., Any], emit: Callable[..., Any]) -> Any:
    """numba counts the parameters of `define`: they are those of `emit`, the typing context in the builder's place."""
    define.__signature__ = inspect.signature(emit)
    define.__name__, define.__doc__ = emit.__name__, emit.__doc__
    return intrinsic(define)


def _numba_type(argument: types.Type) -> types.Type:
    return types.float32 if isinstance(argument, types.Float) else types.int64


# --- constants, memory ---------------------------------------------------------------------------


def i64(value: int) -> ir.Constant:
    """An int64 constant."""
    return ir.Constant(I64, value)


def f32(value: float) -> ir.Constant:
    """A float32 constant, rounded once from the Python number."""
    return ir.Constant(F32, struct.unpack("f", struct.pack("f", value))[0])


def filled(value: float, lanes: int = LANES) -> ir.Constant:
    """A float32 vector constant with one value in every lane."""
    return ir.Constant(vector(F32, lanes), [f32(value).constant] * lanes)


def filled_int(value: int, lanes: int = LANES) -> ir.Constant:
    """An int32 vector constant with one value in every lane."""
    return ir.Constant(vector(I32, lanes), [value] * lanes)


def offset(b: ir.IRBuilder, address: ir.Value, distance: ir.Value | int) -> ir.Value:
    """`address + distance`, in bytes."""
    if isinstance(distance, int):
        return address if distance == 0 else b.add(address, i64(distance))
    return b.add(address, distance)


def element(b: ir.IRBuilder, address: ir.Value, index: ir.Value, size: int) -> ir.Value:
    """The address of element `index` of an array of elements of `size` bytes."""
    return b.add(address, b.mul(index, i64(size)))


def load(
    b: ir.IRBuilder, type_: ir.Type, address: ir.Value, distance: ir.Value | int = 0
) -> ir.Value:
    """A value of `type_`, of any alignment."""
    return b.load(b.inttoptr(offset(b, address, distance), type_.as_pointer()), align=1)


def store(b: ir.IRBuilder, value: ir.Value, address: ir.Value, distance: int = 0) -> None:
    """Stores a value at an address of any alignment."""
    b.store(value, b.inttoptr(offset(b, address, distance), value.type.as_pointer()), align=1)


NEAR, FAR = 3, 2
"""Where a prefetch puts a line: in the first cache, for what is read at once, or in the second."""


def prefetch(b: ir.IRBuilder, address: ir.Value, distance: int = 0, place: int = NEAR) -> None:
    """Asks for the cache line at an address for reading; never faults."""
    pointer = b.inttoptr(offset(b, address, distance), I8.as_pointer())
    arguments = [I8.as_pointer(), I32, I32, I32]
    call(b, "llvm.prefetch.p0", ir.VoidType(), arguments, [pointer, *map(_i32, (0, place, 1))])


def _i32(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


# --- control -------------------------------------------------------------------------------------


@contextmanager
def counted_loop(b: ir.IRBuilder, count: ir.Value) -> Iterator[ir.Value]:
    """A loop over int64 indices 0 to count - 1."""
    with cgutils.for_range(b, count, intp=I64) as loop:
        yield loop.index


class Variable:
    """A value that changes inside a loop; LLVM keeps it in a register."""

    def __init__(self, b: ir.IRBuilder, initial: ir.Value) -> None:
        self._builder = b
        self._slot = cgutils.alloca_once(b, initial.type)
        self.set(initial)

    def get(self) -> ir.Value:
        """The value now."""
        return self._builder.load(self._slot)

    def set(self, value: ir.Value) -> None:
        """Replaces the value."""
        self._builder.store(value, self._slot)


def call(
    b: ir.IRBuilder, name: str, returns: ir.Type, kinds: list[ir.Type], values: list[ir.Value]
) -> ir.Value:
    """Calls a function or LLVM intrinsic by name."""
    target = cgutils.get_or_insert_function(b.module, ir.FunctionType(returns, kinds), name)
    return b.call(target, values)


# --- arithmetic on vectors -----------------------------------------------------------------------


def splat(b: ir.IRBuilder, scalar: ir.Value, lanes: int = LANES) -> ir.Value:
    """A vector with `scalar` in every lane."""
    kind = vector(scalar.type, lanes)
    undefined = ir.Constant(kind, ir.Undefined)
    first = b.insert_element(undefined, scalar, _i32(0))
    return b.shuffle_vector(first, undefined, ir.Constant(vector(I32, lanes), [0] * lanes))


def shuffle(b: ir.IRBuilder, x: ir.Value, y: ir.Value, indices: Sequence[int]) -> ir.Value:
    """The elements of two vectors at `indices` into both, one after the other."""
    order = ir.Constant(vector(I32, len(indices)), list(indices))
    return b.shuffle_vector(x, y, order)


def unary(b: ir.IRBuilder, name: str, value: ir.Value) -> ir.Value:
    """An LLVM intrinsic from a float32 (or vector of them) to the same type: fabs, sqrt, nearbyint."""
    kind = value.type
    suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
    return call(b, f"llvm.{name}.{suffix}", kind, [kind], [value])


def fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, rounded once."""
    return call(b, f"llvm.fma.v{x.type.count}f32", x.type, [x.type] * 3, [x, y, z])


def maximum(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The larger of each lane; y where they do not compare."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def sum_lanes(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The sum over lanes as a fixed tree: halves are added until one lane is left."""
    return _fold(b, value, b.add if value.type.element == I32 else b.fadd)


def max_lanes(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The largest lane."""
    return _fold(b, value, lambda x, y: maximum(b, x, y))


def _fold(b: ir.IRBuilder, value: ir.Value, combine: Callable[..., ir.Value]) -> ir.Value:
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        low, high = (shuffle(b, value, value, range(s, s + lanes)) for s in (0, lanes))
        value = combine(low, high)
    return b.extract_element(value, _i32(0))


_LOG2_E = 1.4426950408889634
_EXP2 = (0.0013333558, 0.0096181291, 0.0555041087, 0.2402265070, 0.6931471806, 1.0)
_EXP_MIN, _EXP_MAX = -86.0, 88.0


def exponential(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e^x: a polynomial of degree 5 for the fraction of x log2(e), relative error 3e-6; 0 below -86, capped at e^88."""
    limited = b.select(b.fcmp_ordered("<", x, filled(_EXP_MAX)), x, filled(_EXP_MAX))
    result = falling_exponential(b, limited)
    return b.select(b.fcmp_ordered(">", x, filled(_EXP_MIN)), result, filled(0.0))


def falling_exponential(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The same polynomial for x up to 88, in three quarters of the time: e^-86 for whatever is less."""
    scaled = b.fmul(maximum(b, x, filled(_EXP_MIN)), filled(_LOG2_E))
    whole = unary(b, "nearbyint", scaled)
    fraction = b.fsub(scaled, whole)
    power = filled(_EXP2[0])
    for coefficient in _EXP2[1:]:
        power = fma(b, power, fraction, filled(coefficient))
    exponent = b.shl(b.fptosi(whole, I32X16), filled_int(23))
    return b.bitcast(b.add(b.bitcast(power, I32X16), exponent), F32X16)


_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP_TERMS = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)


def natural_exponential(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e^x for x up to 0, relative error 2e-7; 0 below -86. ln 2 in two parts keeps the remainder exact (Cody, Waite)."""
    clamped = maximum(b, x, filled(_EXP_MIN))
    whole = unary(b, "nearbyint", b.fmul(clamped, filled(_LOG2_E)))
    rest = fma(b, whole, filled(-_LN2_LOW), fma(b, whole, filled(-_LN2_HIGH), clamped))
    power = filled(_EXP_TERMS[0])
    for coefficient in _EXP_TERMS[1:]:
        power = fma(b, power, rest, filled(coefficient))
    exponent = b.shl(b.fptosi(whole, I32X16), filled_int(23))
    result = b.bitcast(b.add(b.bitcast(power, I32X16), exponent), F32X16)
    return b.select(b.fcmp_ordered(">", x, filled(_EXP_MIN)), result, filled(0.0))


def masked_load_f32(
    b: ir.IRBuilder, address: ir.Value, mask: ir.Value, otherwise: ir.Value
) -> ir.Value:
    """16 float32 where `mask` is set; the others are not read and stand as in `otherwise`."""
    pointer = F32.as_pointer()
    kinds = [pointer, I32, mask.type, F32X16]
    values = [b.inttoptr(address, pointer), _i32(4), mask, otherwise]
    return call(b, "llvm.masked.load.v16f32.p0", F32X16, kinds, values)
