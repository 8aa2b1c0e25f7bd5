"""Scalar memory access by address, atomics, and the calls to the C library that compiled code needs."""

from llvmlite import ir
from numba import types

from kernels.cpu import ir_tools
from kernels.cpu.ir_tools import (
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    call,
    function,
    instruction,
    load,
    store,
)


@function(types.int64)
def load_u8(b, address):
    """A byte, 0 to 255."""
    return b.zext(load(b, I8, address), I64)


@function(types.int64)
def load_i16(b, address):
    """A signed 16-bit number."""
    return b.sext(load(b, I16, address), I64)


@function(types.int64)
def load_i32(b, address):
    """A signed 32-bit number."""
    return b.sext(load(b, I32, address), I64)


@function(types.int64)
def load_i64(b, address):
    """A signed 64-bit number."""
    return load(b, I64, address)


@function(types.float32)
def load_f16(b, address):
    """A float16 as float32."""
    return b.fpext(load(b, F16, address), F32)


@function(types.float32)
def load_f32(b, address):
    """A float32."""
    return load(b, F32, address)


@function(types.float64)
def load_f64(b, address):
    """A float64."""
    return load(b, F64, address)


@function(types.voidptr)
def pointer(b, address):
    """An address as the pointer that numba.carray takes."""
    return b.inttoptr(address, I8.as_pointer())


@instruction
def prefetch(b, address):
    """Asks for the cache line of an address that will be read."""
    ir_tools.prefetch(b, address)


@instruction
def store_i16(b, address, value):
    """Stores the low 16 bits of a number."""
    store(b, b.trunc(value, I16), address)


@instruction
def store_i32(b, address, value):
    """Stores the low 32 bits of a number."""
    store(b, b.trunc(value, I32), address)


@instruction
def store_i64(b, address, value):
    """Stores a 64-bit number."""
    store(b, value, address)


@instruction
def store_f32(b, address, value):
    """Stores a float32."""
    store(b, value, address)


@instruction
def fill_zero(b, address, num_bytes):
    """Sets bytes to 0."""
    pointer = b.inttoptr(address, I8.as_pointer())
    kinds = [I8.as_pointer(), I8, I64, ir.IntType(1)]
    values = [pointer, ir.Constant(I8, 0), num_bytes, ir.Constant(ir.IntType(1), 0)]
    call(b, "llvm.memset.p0.i64", ir.VoidType(), kinds, values)


@function(types.float32)
def float_from_bits(b, bits):
    """The float32 whose bits are the low half of a number."""
    return b.bitcast(b.trunc(bits, I32), F32)


# --- atomics -------------------------------------------------------------------------------------


def _pointer(b, address):
    return b.inttoptr(address, I64.as_pointer())


@function(types.int64)
def atomic_add(b, address, value):
    """Adds to a 64-bit number; returns what was there before."""
    return b.atomic_rmw("add", _pointer(b, address), value, "seq_cst")


@function(types.int64)
def atomic_load(b, address):
    """Reads a 64-bit number; later reads of this thread are not moved before it."""
    return b.load_atomic(_pointer(b, address), "acquire", 8)


@instruction
def atomic_store(b, address, value):
    """Writes a 64-bit number; earlier writes of this thread are visible before it."""
    b.store_atomic(value, _pointer(b, address), "release", 8)


@function(types.int64)
def compare_and_swap(b, address, expected, value):
    """Writes `value` if `expected` is there; returns what was there before."""
    result = b.cmpxchg(_pointer(b, address), expected, value, "seq_cst", "seq_cst")
    return b.extract_value(result, 0)


# --- the processor and the C library -------------------------------------------------------------


@instruction
def pause(b):
    """Tells the processor that this is a wait loop."""
    call(b, "llvm.x86.sse2.pause", ir.VoidType(), [], [])


@instruction
def yield_processor(b):
    """Lets another thread run (sched_yield)."""
    call(b, "sched_yield", I32, [], [])


@function(types.int64)
def semaphore_wait(b, semaphore):
    """Sleeps until the semaphore is posted (sem_wait); not 0 when a signal interrupted it."""
    return b.sext(call(b, "sem_wait", I32, [I64], [semaphore]), I64)


@instruction
def semaphore_post(b, semaphore):
    """Wakes one sleeper (sem_post)."""
    call(b, "sem_post", I32, [I64], [semaphore])
