"""Tiles of keys and values: where they lie, how they become float32, and the products over them.

`a` is the record of `AttentionArguments`; the other arguments are addresses, counts, and strides in bytes.
"""

import numpy as np
from numba import carray, njit

from kernels.cpu.llvm import BFLOAT16, FLOAT16, FLOAT32, WIDTH
from kernels.cpu.memory import pointer, prefetch
from kernels.cpu.products import MAX_ROWS, TILE, make_matmul, make_pack_columns
from kernels.cpu.rows import load_row, size_of

CHUNK = 256
"""Keys that are looked up at a time, and keys of a partial result."""

_CACHE_LINE = 64

_matmul_1, _matmul_2, _matmul_3, _matmul_4, _matmul_5, _matmul_6 = (
    make_matmul(rows, accumulate=False) for rows in range(1, MAX_ROWS + 1)
)
_add_matmul_1, _add_matmul_2, _add_matmul_3, _add_matmul_4, _add_matmul_5, _add_matmul_6 = (
    make_matmul(rows, accumulate=True) for rows in range(1, MAX_ROWS + 1)
)
_pack_float32, _pack_bfloat16, _pack_float16 = (
    make_pack_columns(dtype) for dtype in (FLOAT32, BFLOAT16, FLOAT16)
)


@njit
def matmul(rows, a, stride_a, b, stride_b, out, stride_out, size):
    if rows == 6:
        _matmul_6(a, stride_a, b, stride_b, out, stride_out, size)
    elif rows == 5:
        _matmul_5(a, stride_a, b, stride_b, out, stride_out, size)
    elif rows == 4:
        _matmul_4(a, stride_a, b, stride_b, out, stride_out, size)
    elif rows == 3:
        _matmul_3(a, stride_a, b, stride_b, out, stride_out, size)
    elif rows == 2:
        _matmul_2(a, stride_a, b, stride_b, out, stride_out, size)
    else:
        _matmul_1(a, stride_a, b, stride_b, out, stride_out, size)


@njit
def add_matmul(rows, a, stride_a, b, stride_b, out, stride_out, size):
    if rows == 6:
        _add_matmul_6(a, stride_a, b, stride_b, out, stride_out, size)
    elif rows == 5:
        _add_matmul_5(a, stride_a, b, stride_b, out, stride_out, size)
    elif rows == 4:
        _add_matmul_4(a, stride_a, b, stride_b, out, stride_out, size)
    elif rows == 3:
        _add_matmul_3(a, stride_a, b, stride_b, out, stride_out, size)
    elif rows == 2:
        _add_matmul_2(a, stride_a, b, stride_b, out, stride_out, size)
    else:
        _add_matmul_1(a, stride_a, b, stride_b, out, stride_out, size)


# --- tiles of keys and values ---------------------------------------------------------------------


@njit(error_model="numpy")
def find_rows(a, sequence, kv_head, start, end, hidden, keys, values, zeros):
    """Write the addresses of the keys and values start..end but for the first `hidden`; of zeros up to whole tiles."""
    key_rows = carray(pointer(keys), CHUNK, dtype=np.int64)
    value_rows = carray(pointer(values), CHUNK, dtype=np.int64)
    item_size = size_of(a.cache_dtype)
    table = carray(
        pointer(a.block_tables + 4 * sequence * a.block_table_stride),
        a.block_table_stride,
        dtype=np.int32,
    )
    for j in range(hidden // TILE * TILE, hidden):
        key_rows[j] = value_rows[j] = zeros
    i = hidden
    while i < end - start:
        block, offset = (start + i) // a.block_size, (start + i) % a.block_size
        block_id = np.int64(table[block])
        inside = (kv_head * a.block_size + offset) * a.head_dim
        key = a.key_cache + (block_id * a.key_block_stride + inside) * item_size
        value = a.value_cache + (block_id * a.value_block_stride + inside) * item_size
        count = min(a.block_size - offset, end - start - i)
        for j in range(count):
            key_rows[i + j] = key + j * a.head_dim * item_size
            value_rows[i + j] = value + j * a.head_dim * item_size
        i += count
    for j in range(i, (i + TILE - 1) // TILE * TILE):
        key_rows[j] = zeros


@njit(error_model="numpy")
def prefetch_rows(a, rows, first, count):
    """Ask for rows first..count, a tile at most, which are read next."""
    found = carray(pointer(rows), CHUNK, dtype=np.int64)
    size = a.head_dim * size_of(a.cache_dtype)
    for i in range(first, min(first + TILE, count)):
        for offset in range(0, size, _CACHE_LINE):
            prefetch(found[i] + offset)


@njit
def _pack_step(dtype, rows, offset, out, stride_out):
    if dtype == BFLOAT16:
        _pack_bfloat16(rows, offset, out, stride_out)
    elif dtype == FLOAT16:
        _pack_float16(rows, offset, out, stride_out)
    else:
        _pack_float32(rows, offset, out, stride_out)


@njit(error_model="numpy")
def pack_keys(a, rows, tile, spare):
    """TILE keys as columns of `tile` [head_dim, TILE]; `spare` holds head_dim floats."""
    step = WIDTH if a.cache_dtype == FLOAT32 else 2 * WIDTH
    item_size = size_of(a.cache_dtype)
    if a.head_dim < step:
        _pack_short_keys(a, rows, tile, spare)
        return
    for part in range(TILE // WIDTH):
        sources, target = rows + 8 * WIDTH * part, tile + 4 * WIDTH * part
        for d in range(0, a.head_dim, step):
            # The last step goes back, to end with the row, and repeats what it overlaps.
            start = min(d, a.head_dim - step)
            out = target + 4 * TILE * start
            _pack_step(a.cache_dtype, sources, start * item_size, out, 4 * TILE)


@njit(error_model="numpy")
def _pack_short_keys(a, rows, tile, spare):
    found = carray(pointer(rows), TILE, dtype=np.int64)
    key = carray(pointer(spare), a.head_dim, dtype=np.float32)
    out = carray(pointer(tile), (a.head_dim, TILE), dtype=np.float32)
    for j in range(TILE):
        load_row(found[j], a.cache_dtype, spare, a.head_dim)
        for d in range(a.head_dim):
            out[d, j] = key[d]
