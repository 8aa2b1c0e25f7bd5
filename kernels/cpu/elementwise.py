"""Normalisation, activation, rotation and copies: routines that work row by row.

Every argument structure begins with the counters `next_row` and `next_slot`, by which threads claim rows and a part
of the scratch memory. Strides are in elements, pointers are addresses, dtypes are the codes of `kernels.cpu.vectors`.
"""

import ctypes

import numpy as np
from numba import carray, njit

from kernels.cpu.jit import routine
from kernels.cpu.memory import atomic_add, pointer
from kernels.cpu.rows import copy_bytes, load_row, size_of, store_row
from kernels.cpu.vectors import exp2

_ROWS_PER_CLAIM = 8
_LOG2_E = np.float32(1.4426950408889634)


def _structure(name: str, fields: str) -> type[ctypes.Structure]:
    """A structure of int64 fields after the counters; a field ending in ":d" is a double."""
    members = []
    for field in ("next_row next_slot num_rows " + fields).split():
        stem, _, kind = field.partition(":")
        members.append((stem, ctypes.c_double if kind else ctypes.c_int64))
    return type(name, (ctypes.Structure,), {"_fields_": members})


NormArguments = _structure(
    "NormArguments",
    "size eps:d scratch slot_size x x_stride x_dtype residual residual_stride residual_dtype"
    " weight weight_dtype out residual_out",
)
SiluArguments = _structure("SiluArguments", "size scratch slot_size x x_stride dtype out")
RotaryArguments = _structure(
    "RotaryArguments",
    "head_dim scratch slot_size positions cos_sin cos_sin_dtype dtype"
    " query query_token_stride query_head_stride num_heads"
    " key key_token_stride key_head_stride num_kv_heads",
)
StoreArguments = _structure(
    "StoreArguments",
    "num_kv_heads head_dim block_size scratch slot_size dtype cache_dtype slot_mapping"
    " key key_token_stride key_head_stride value value_token_stride value_head_stride"
    " key_cache key_block_stride value_cache value_block_stride",
)
CopyArguments = _structure(
    "CopyArguments",
    "num_copies block_bytes kv_cache layer_stride kind_stride block_stride src dst",
)
_NORM, _SILU, _ROTARY, _STORE, _COPY = (
    np.dtype(structure)
    for structure in (NormArguments, SiluArguments, RotaryArguments, StoreArguments, CopyArguments)
)


@njit(fastmath={"reassoc"})
def _sum_of_squares(row, size):
    data = carray(pointer(row), size, dtype=np.float32)
    total = np.float32(0.0)
    for i in range(size):
        total += data[i] * data[i]
    return total


@njit(error_model="numpy")
def _norm_row(a, t, row, weight):
    """Row t of x (plus residual, if there is one) normalised; `row` and `weight` are scratch of `size` floats."""
    load_row(a.x + t * a.x_stride * size_of(a.x_dtype), a.x_dtype, row, a.size)
    data = carray(pointer(row), a.size, dtype=np.float32)
    weights = carray(pointer(weight), a.size, dtype=np.float32)
    if a.residual != 0:
        residual_size = size_of(a.residual_dtype)
        other_row = weight + 4 * a.size
        other = carray(pointer(other_row), a.size, dtype=np.float32)
        source = a.residual + t * a.residual_stride * residual_size
        load_row(source, a.residual_dtype, other_row, a.size)
        for i in range(a.size):
            data[i] += other[i]
        store_row(row, a.residual_out + t * a.size * residual_size, a.residual_dtype, a.size)
    mean = _sum_of_squares(row, a.size) / np.float32(a.size)
    factor = np.float32(1.0) / np.sqrt(mean + np.float32(a.eps))
    for i in range(a.size):
        data[i] = data[i] * factor * weights[i]
    store_row(row, a.out + t * a.size * size_of(a.x_dtype), a.x_dtype, a.size)


@routine
def rms_norm(address):
    a = carray(pointer(address), 1, dtype=_NORM)[0]
    row = a.scratch + atomic_add(address + 8, 1) * a.slot_size
    weight = row + 4 * a.size
    load_row(a.weight, a.weight_dtype, weight, a.size)
    while True:
        first = atomic_add(address, _ROWS_PER_CLAIM)
        if first >= a.num_rows:
            return 0
        for t in range(first, min(first + _ROWS_PER_CLAIM, a.num_rows)):
            _norm_row(a, t, row, weight)


@njit(error_model="numpy")
def _silu_row(a, t, row):
    item_size = size_of(a.dtype)
    source = a.x + t * a.x_stride * item_size
    load_row(source, a.dtype, row, 2 * a.size)
    gate = carray(pointer(row), a.size, dtype=np.float32)
    up = carray(pointer(row + 4 * a.size), a.size, dtype=np.float32)
    for i in range(a.size):
        x = gate[i]
        gate[i] = x / (np.float32(1.0) + exp2(-x * _LOG2_E)) * up[i]
    store_row(row, a.out + t * a.size * item_size, a.dtype, a.size)


@routine
def silu_and_mul(address):
    a = carray(pointer(address), 1, dtype=_SILU)[0]
    row = a.scratch + atomic_add(address + 8, 1) * a.slot_size
    while True:
        first = atomic_add(address, _ROWS_PER_CLAIM)
        if first >= a.num_rows:
            return 0
        for t in range(first, min(first + _ROWS_PER_CLAIM, a.num_rows)):
            _silu_row(a, t, row)


@njit(error_model="numpy")
def _rotate(head, dtype, half, cos_sin, row):
    """Rotate the 2 * half numbers at `head` in place; `row` is scratch of as many floats."""
    load_row(head, dtype, row, 2 * half)
    x = carray(pointer(row), 2 * half, dtype=np.float32)
    factors = carray(pointer(cos_sin), 2 * half, dtype=np.float32)
    for i in range(half):
        x1, x2 = x[i], x[half + i]
        cos, sin = factors[i], factors[half + i]
        x[i] = x1 * cos - x2 * sin
        x[half + i] = x2 * cos + x1 * sin
    store_row(row, head, dtype, 2 * half)


@njit(error_model="numpy")
def _rotate_token(a, t, cos_sin, row):
    position = carray(pointer(a.positions), a.num_rows, dtype=np.int64)[t]
    source = a.cos_sin + position * a.head_dim * size_of(a.cos_sin_dtype)
    load_row(source, a.cos_sin_dtype, cos_sin, a.head_dim)
    item_size, half = size_of(a.dtype), a.head_dim // 2
    for h in range(a.num_heads):
        offset = t * a.query_token_stride + h * a.query_head_stride
        _rotate(a.query + offset * item_size, a.dtype, half, cos_sin, row)
    for h in range(a.num_kv_heads):
        offset = t * a.key_token_stride + h * a.key_head_stride
        _rotate(a.key + offset * item_size, a.dtype, half, cos_sin, row)


@routine
def rotary(address):
    a = carray(pointer(address), 1, dtype=_ROTARY)[0]
    row = a.scratch + atomic_add(address + 8, 1) * a.slot_size
    while True:
        first = atomic_add(address, _ROWS_PER_CLAIM)
        if first >= a.num_rows:
            return 0
        for t in range(first, min(first + _ROWS_PER_CLAIM, a.num_rows)):
            _rotate_token(a, t, row + 4 * a.head_dim, row)


@njit(error_model="numpy")
def _store_head(source, target, a, row):
    if a.dtype == a.cache_dtype:
        copy_bytes(source, target, a.head_dim * size_of(a.dtype))
    else:
        load_row(source, a.dtype, row, a.head_dim)
        store_row(row, target, a.cache_dtype, a.head_dim)


@njit(error_model="numpy")
def _store_token(a, t, row):
    slot = carray(pointer(a.slot_mapping), a.num_rows, dtype=np.int64)[t]
    if slot < 0:
        return
    block_id, offset = slot // a.block_size, slot % a.block_size
    item_size, cache_size = size_of(a.dtype), size_of(a.cache_dtype)
    for h in range(a.num_kv_heads):
        inside = (h * a.block_size + offset) * a.head_dim
        key = a.key + (t * a.key_token_stride + h * a.key_head_stride) * item_size
        target = a.key_cache + (block_id * a.key_block_stride + inside) * cache_size
        _store_head(key, target, a, row)
        value = a.value + (t * a.value_token_stride + h * a.value_head_stride) * item_size
        target = a.value_cache + (block_id * a.value_block_stride + inside) * cache_size
        _store_head(value, target, a, row)


@routine
def store_kv_cache(address):
    a = carray(pointer(address), 1, dtype=_STORE)[0]
    row = a.scratch + atomic_add(address + 8, 1) * a.slot_size
    while True:
        first = atomic_add(address, _ROWS_PER_CLAIM)
        if first >= a.num_rows:
            return 0
        for t in range(first, min(first + _ROWS_PER_CLAIM, a.num_rows)):
            _store_token(a, t, row)


@routine
def copy_blocks(address):
    """Row r is copy r % num_copies of half-layer r // num_copies; strides are in bytes."""
    a = carray(pointer(address), 1, dtype=_COPY)[0]
    src = carray(pointer(a.src), a.num_copies, dtype=np.int64)
    dst = carray(pointer(a.dst), a.num_copies, dtype=np.int64)
    while True:
        row = atomic_add(address, 1)
        if row >= a.num_rows:
            return 0
        copy, half_layer = row % a.num_copies, row // a.num_copies
        base = a.kv_cache + half_layer // 2 * a.layer_stride + half_layer % 2 * a.kind_stride
        source, target = base + src[copy] * a.block_stride, base + dst[copy] * a.block_stride
        copy_bytes(source, target, a.block_bytes)
