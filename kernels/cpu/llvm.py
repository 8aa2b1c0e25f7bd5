"""Numbers as LLVM IR for the kernels that run on every CPU: 16-bit floats to and from float32, 2 ** x.

The IR names no instruction set: LLVM lowers <16 x float> or <8 x float> to whatever the machine has. Everything that
takes a value takes a scalar or a vector, where that makes sense.
"""

import math

import llvmlite.binding
from llvmlite import ir

from kernels.cpu import ir_tools
from kernels.cpu.ir_tools import F16, F32, I16, I32

WIDTH = 16 if llvmlite.binding.get_host_cpu_features().get("avx512f", False) else 8
"""Floats of one vector."""

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2

_EXP2_COEFFICIENTS = [math.log(2) ** n / math.factorial(n) for n in range(7)]


def constant(type_: ir.Type, value: float) -> ir.Constant:
    """A number, or a vector of it."""
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [value] * type_.count)
    return ir.Constant(type_, value)


def like(shape: ir.Type, element: ir.Type) -> ir.Type:
    """The type with the shape of `shape` (a vector or a scalar) and another element."""
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def call(b: ir.IRBuilder, name: str, arguments: list[ir.Value]) -> ir.Value:
    """Call an overloaded LLVM intrinsic that returns the type of its first argument, all float32."""
    kind = arguments[0].type
    suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
    return ir_tools.call(b, f"llvm.{name}.{suffix}", kind, [x.type for x in arguments], arguments)


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
