"""What numba lacks and scalar code needs: 16-bit floats, and 2 ** x that vectorises."""

from numba import types

from kernels.cpu import llvm
from kernels.cpu.ir_tools import I16, function


@function(types.float32)
def bfloat16_to_float32(b, bits):
    """The float32 of a bfloat16."""
    return llvm.widen(b, b.trunc(bits, I16), llvm.BFLOAT16)


@function(types.float32)
def float16_to_float32(b, bits):
    """The float32 of a float16."""
    return llvm.widen(b, b.trunc(bits, I16), llvm.FLOAT16)


@function(types.uint16)
def float32_to_bfloat16(b, value):
    """The nearest bfloat16, ties to even, as its bits."""
    return llvm.narrow(b, value, llvm.BFLOAT16)


@function(types.uint16)
def float32_to_float16(b, value):
    """The nearest float16, ties to even, as its bits."""
    return llvm.narrow(b, value, llvm.FLOAT16)


@function(types.float32)
def exp2(b, value):
    """2 ** value."""
    return llvm.exp2(b, value)
