"""Pieces of LLVM IR for the vector code of this package: types, memory, numbers. Nothing here is called at run time.

The IR names no instruction set: LLVM lowers <16 x float> or <8 x float> to whatever the machine has. Everything that
takes a value takes a scalar or a vector, where that makes sense. Addresses are int64.
"""

import math
from collections.abc import Sequence

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils

WIDTH = 16 if llvmlite.binding.get_host_cpu_features().get("avx512f", False) else 8
"""Floats of one vector."""

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2

I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32 = ir.HalfType(), ir.FloatType()
_EXP2_COEFFICIENTS = [math.log(2) ** n / math.factorial(n) for n in range(7)]


def vector_of(element: ir.Type, count: int = WIDTH) -> ir.VectorType:
    return ir.VectorType(element, count)


def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def constant(type_: ir.Type, value: float) -> ir.Constant:
    """A number, or a vector of it."""
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [value] * type_.count)
    return ir.Constant(type_, value)


def like(shape: ir.Type, element: ir.Type) -> ir.Type:
    """The type with the shape of `shape` (a vector or a scalar) and another element."""
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def load(b: ir.IRBuilder, type_: ir.Type, address: ir.Value, align: int = 4) -> ir.Value:
    return b.load(b.inttoptr(address, type_.as_pointer()), align=align)


def store(b: ir.IRBuilder, value: ir.Value, address: ir.Value, align: int = 4) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=align)


def broadcast(b: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    undefined = ir.Constant(vector_of(scalar.type), ir.Undefined)
    single = b.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(single, undefined, ir.Constant(vector_of(I32), [0] * WIDTH))


def shuffle(b: ir.IRBuilder, x: ir.Value, y: ir.Value, indices: Sequence[int]) -> ir.Value:
    return b.shuffle_vector(x, y, ir.Constant(vector_of(I32, len(indices)), list(indices)))


def call(b: ir.IRBuilder, name: str, arguments: list[ir.Value]) -> ir.Value:
    """Call an overloaded LLVM intrinsic that returns the type of its first argument."""
    type_ = arguments[0].type
    suffix = f"v{type_.count}f32" if isinstance(type_, ir.VectorType) else "f32"
    signature = ir.FunctionType(type_, [x.type for x in arguments])
    function = cgutils.get_or_insert_function(b.module, signature, f"llvm.{name}.{suffix}")
    return b.call(function, arguments)


# --- numbers ------------------------------------------------------------------------------------


def widen(b: ir.IRBuilder, bits: ir.Value, dtype: int) -> ir.Value:
    """16-bit floats, given as integers, to float32."""
    if dtype == FLOAT16:
        return b.fpext(b.bitcast(bits, like(bits.type, F16)), like(bits.type, F32))
    integers = b.zext(bits, like(bits.type, I32))
    return b.bitcast(b.shl(integers, constant(integers.type, 16)), like(bits.type, F32))


def narrow(b: ir.IRBuilder, x: ir.Value, dtype: int) -> ir.Value:
    """float32 to 16-bit floats as integers, rounded to nearest, ties to even."""
    if dtype == FLOAT16:
        return b.bitcast(b.fptrunc(x, like(x.type, F16)), like(x.type, I16))
    bits = b.bitcast(x, like(x.type, I32))
    upper = b.lshr(bits, constant(bits.type, 16))
    odd = b.and_(upper, constant(bits.type, 1))
    rounded = b.add(b.add(bits, constant(bits.type, 0x7FFF)), odd)
    quiet_nan = constant(bits.type, 0x7FC00000)
    result = b.select(b.fcmp_unordered("uno", x, x), quiet_nan, rounded)
    return b.trunc(b.lshr(result, constant(bits.type, 16)), like(x.type, I16))


def exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2 ** x to about 1e-7: 0 below -126, and 2 ** 127 above 127."""
    type_ = x.type
    tiny = b.fcmp_ordered("<=", x, constant(type_, -126.0))
    x = b.select(tiny, constant(type_, -126.0), x)
    large = constant(type_, 127.0)
    x = b.select(b.fcmp_ordered(">", x, large), large, x)
    whole = call(b, "rint", [x])
    fraction = b.fsub(x, whole)
    result = constant(type_, _EXP2_COEFFICIENTS[-1])
    for coefficient in reversed(_EXP2_COEFFICIENTS[:-1]):
        result = call(b, "fmuladd", [result, fraction, constant(type_, coefficient)])
    integer_type = like(type_, I32)
    exponent = b.shl(b.fptosi(whole, integer_type), constant(integer_type, 23))
    result = b.bitcast(b.add(b.bitcast(result, integer_type), exponent), type_)
    return b.select(tiny, constant(type_, 0.0), result)
