"""Rows of numbers in memory, to and from float32."""

from collections.abc import Callable

import numpy as np
from numba import carray, njit

from kernels.cpu.llvm import BFLOAT16, FLOAT16, FLOAT32
from kernels.cpu.memory import pointer
from kernels.cpu.vectors import (
    bfloat16_to_float32,
    float16_to_float32,
    float32_to_bfloat16,
    float32_to_float16,
)


def _make_load(widen: Callable) -> Callable:
    @njit(error_model="numpy")
    def load(source, row, size):
        data = carray(pointer(source), size, dtype=np.uint16)
        out = carray(pointer(row), size, dtype=np.float32)
        for i in range(size):
            out[i] = widen(data[i])

    return load


def _make_store(narrow: Callable) -> Callable:
    @njit(error_model="numpy")
    def store(row, target, size):
        data = carray(pointer(row), size, dtype=np.float32)
        out = carray(pointer(target), size, dtype=np.uint16)
        for i in range(size):
            out[i] = narrow(data[i])

    return store


_load_bfloat16, _load_float16 = _make_load(bfloat16_to_float32), _make_load(float16_to_float32)
_store_bfloat16, _store_float16 = _make_store(float32_to_bfloat16), _make_store(float32_to_float16)


@njit
def size_of(dtype):
    """Bytes of one number."""
    return 4 if dtype == FLOAT32 else 2


@njit
def copy_bytes(source, target, size):
    """Copy `size` bytes between two places that do not overlap."""
    data = carray(pointer(source), size, dtype=np.uint8)
    out = carray(pointer(target), size, dtype=np.uint8)
    for i in range(size):
        out[i] = data[i]


@njit
def load_row(source, dtype, row, size):
    """`size` numbers of any dtype as float32 to `row`."""
    if dtype == BFLOAT16:
        _load_bfloat16(source, row, size)
    elif dtype == FLOAT16:
        _load_float16(source, row, size)
    else:
        copy_bytes(source, row, 4 * size)


@njit
def store_row(row, target, dtype, size):
    """`size` float32 numbers at `row` rounded to any dtype."""
    if dtype == BFLOAT16:
        _store_bfloat16(row, target, size)
    elif dtype == FLOAT16:
        _store_float16(row, target, size)
    else:
        copy_bytes(row, target, 4 * size)
