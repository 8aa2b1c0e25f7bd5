"""What numba lacks and scalar code needs: 16-bit floats, 2 ** x that vectorises, addresses, atomic counters."""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu import llvm


def _scalar_intrinsic(argument, result, emit: Callable) -> Callable:
    @intrinsic
    def scalar(typing_context, x):
        def generate(context, builder, signature, arguments):
            return emit(builder, arguments[0])

        return result(argument), generate

    return scalar


bfloat16_to_float32 = _scalar_intrinsic(
    types.uint16, types.float32, lambda b, x: llvm.widen(b, x, llvm.BFLOAT16)
)
float16_to_float32 = _scalar_intrinsic(
    types.uint16, types.float32, lambda b, x: llvm.widen(b, x, llvm.FLOAT16)
)
float32_to_bfloat16 = _scalar_intrinsic(
    types.float32, types.uint16, lambda b, x: llvm.narrow(b, x, llvm.BFLOAT16)
)
float32_to_float16 = _scalar_intrinsic(
    types.float32, types.uint16, lambda b, x: llvm.narrow(b, x, llvm.FLOAT16)
)
exp2 = _scalar_intrinsic(types.float32, types.float32, llvm.exp2)


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
        target = builder.inttoptr(arguments[0], llvm.I64.as_pointer())
        return builder.atomic_rmw("add", target, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def prefetch(typing_context, address):
    """Ask for the cache line of an address that will be read."""

    def generate(context, builder, signature, arguments):
        pointer_type = cgutils.voidptr_t
        signature = ir.FunctionType(ir.VoidType(), [pointer_type, llvm.I32, llvm.I32, llvm.I32])
        function = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
        flags = [ir.Constant(llvm.I32, flag) for flag in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(arguments[0], pointer_type), *flags])
        return context.get_dummy_value()

    return types.void(types.int64), generate
