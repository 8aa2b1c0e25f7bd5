"""Paged attention: reads keys and values where they lie, through the block table, a tile at a time.

Work is cut into items: a tile of query rows (tokens of one sequence times the heads that share a KV head) over the
keys of one KV head, which are walked in chunks of CHUNK. A chunk gives a partial result (maximum, sum, weighted
values) and partial results are merged in order, as in flash attention (Dao et al., 2022). With few items each chunk
becomes an item of its own and `finish` merges them (flash decoding). Both ways do the same arithmetic in the same
order, and so does every batch: a token's result depends on nothing but its sequence.

Inside a chunk, keys are transposed to float32 tiles [head_dim, TILE] and values widened to [TILE, width], with `width`
head_dim rounded up to a multiple of TILE; both products run in registers. Softmax is in powers of two, with
scale * log2(e) multiplied into the query. Keys before the windows of all rows of an item are not read: chunks of them are passed
by, tiles of them in the first chunk too, and what is left of a tile is zeros. Chunks and tiles lie where they lie without a window, so
that a row's sums have the same order in every item. Lengths and counts are in elements, addresses and strides of scratch in bytes.
"""

import ctypes
from functools import cache

import numpy as np
from numba import carray, njit

from kernels.cpu.jit import routine
from kernels.cpu.llvm import WIDTH
from kernels.cpu.memory import atomic_add, pointer
from kernels.cpu.products import MAX_ROWS, TILE, cap_row, softmax_row
from kernels.cpu.rows import load_row, size_of, store_row
from kernels.cpu.tiles import CHUNK, add_matmul, find_rows, matmul, pack_keys, prefetch_rows

TILE_ROWS = 48
"""Query rows of an item (fewer if they do not divide into tokens, more if one token has more heads)."""

_INTEGERS = (
    "next_item next_slot num_items num_tiles max_tiles num_chunks num_seqs num_heads num_kv_heads head_dim block_size"
    " query query_token_stride query_head_stride query_dtype out"
    " key_cache key_block_stride value_cache value_block_stride cache_dtype"
    " block_tables block_table_stride seq_lens query_start_loc"
    " window tokens_per_tile wanted_items scratch slot_size tiles partials partial_size"
)


class AttentionArguments(ctypes.Structure):
    """Counters, shapes, addresses and element strides of one call; `window` NO_WINDOW or `soft_cap` 0: there is none."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _INTEGERS.split()),
        ("scale", ctypes.c_double),
        ("soft_cap", ctypes.c_double),
    ]


NO_WINDOW = 2**62
_ARGUMENTS = np.dtype(AttentionArguments)
_LOG2_E = 1.4426950408889634
_MINUS_INFINITY = np.float32(-np.inf)


def tile_width(head_dim: int) -> int:
    """head_dim rounded up to whole tiles."""
    return -(-head_dim // TILE) * TILE


@cache
def partial_size(num_rows: int, head_dim: int) -> int:
    """Bytes of a partial result: num_rows maxima, sums and rows of values."""
    return 4 * num_rows * (2 + tile_width(head_dim))


@cache
def slot_size(num_rows: int, head_dim: int) -> int:
    """Bytes of scratch that one thread needs for items of num_rows rows."""
    floats = num_rows * (head_dim + CHUNK) + TILE * tile_width(head_dim) + 2 * head_dim
    size = 4 * floats + 16 * CHUNK + 2 * partial_size(num_rows, head_dim)
    return -(-size // 64) * 64


# --- one chunk ------------------------------------------------------------------------------------


@njit
def _visible(a, base, row, group_size, start, end):
    """How many of the keys start..end do not lie behind a row; `base` is the position of row 0."""
    return max(0, min(base + row // group_size + 1, end) - start)


@njit
def _hidden(a, base, row, group_size, start, end):
    """How many of them lie before the row's window: it sees the others of `_visible`."""
    return max(0, min(base + row // group_size + 1 - a.window, end) - start)


@njit
def _skipped(a, base, start, end):
    """How many of them, in whole tiles, lie before the windows of all rows."""
    return _hidden(a, base, 0, 1, start, end) // TILE * TILE


@njit(error_model="numpy")
def _score(a, base, num_rows, start, end, scratch):
    """Scores of the chunk, [num_rows, CHUNK]; only tiles of which some row of a group of rows sees a key are written."""
    group_size = a.num_heads // a.num_kv_heads
    query, scores, tile, keys = scratch[0], scratch[1], scratch[2], scratch[4]
    num_groups = (num_rows + MAX_ROWS - 1) // MAX_ROWS
    for first in range(_skipped(a, base, start, end), end - start, TILE):
        prefetch_rows(a, keys, first + TILE, end - start)
        pack_keys(a, keys + 8 * first, tile, scratch[3])
        for group in range(num_groups):
            low, high = group * num_rows // num_groups, (group + 1) * num_rows // num_groups
            visible = _visible(a, base, high - 1, group_size, start, end)
            if visible > first and _hidden(a, base, low, group_size, start, end) < first + TILE:
                matmul(
                    high - low,
                    query + 4 * low * a.head_dim,
                    4 * a.head_dim,
                    tile,
                    4 * TILE,
                    scores + 4 * (low * CHUNK + first),
                    4 * CHUNK,
                    a.head_dim,
                )


@njit(error_model="numpy")
def _softmax(a, base, num_rows, start, end, scores, partial):
    """Scores to weights; hidden keys within the row's group of rows get 0. Writes maxima and sums of the partial."""
    group_size = a.num_heads // a.num_kv_heads
    num_groups = (num_rows + MAX_ROWS - 1) // MAX_ROWS
    maxima = carray(pointer(partial), num_rows, dtype=np.float32)
    sums = carray(pointer(partial + 4 * num_rows), num_rows, dtype=np.float32)
    skipped = _skipped(a, base, start, end)
    for group in range(num_groups):
        low, high = group * num_rows // num_groups, (group + 1) * num_rows // num_groups
        widest = _visible(a, base, high - 1, group_size, start, end)
        num_vectors = (widest - skipped + WIDTH - 1) // WIDTH
        behind = skipped + num_vectors * WIDTH
        for r in range(low, high):
            hidden = _hidden(a, base, r, group_size, start, end)
            visible = _visible(a, base, r, group_size, start, end)
            row = carray(pointer(scores + 4 * r * CHUNK), CHUNK, dtype=np.float32)
            maxima[r] = _MINUS_INFINITY
            sums[r] = 0.0
            if visible == hidden:
                row[skipped:behind] = 0.0
                continue
            address = scores + 4 * (r * CHUNK + skipped)
            if a.soft_cap > 0.0:
                cap_row(address, num_vectors, np.float32(-2.0 * _LOG2_E * a.soft_cap))
            row[skipped:hidden] = _MINUS_INFINITY
            row[visible:behind] = _MINUS_INFINITY
            softmax_row(address, num_vectors, partial + 4 * r, partial + 4 * (num_rows + r))


@njit(error_model="numpy")
def _weigh(a, base, num_rows, start, end, scratch, out):
    """Weighted sums of the chunk's values to `out` [num_rows, width]."""
    group_size = a.num_heads // a.num_kv_heads
    scores, tile, values = scratch[1], scratch[2], scratch[5]
    width = (a.head_dim + TILE - 1) // TILE * TILE
    carray(pointer(out), num_rows * width, dtype=np.float32)[:] = 0.0
    value_rows = carray(pointer(values), CHUNK, dtype=np.int64)
    num_groups = (num_rows + MAX_ROWS - 1) // MAX_ROWS
    for first in range(_skipped(a, base, start, end), end - start, TILE):
        prefetch_rows(a, values, first + TILE, end - start)
        count = min(TILE, end - start - first)
        for i in range(count):
            load_row(value_rows[first + i], a.cache_dtype, tile + 4 * i * width, a.head_dim)
        for group in range(num_groups):
            low, high = group * num_rows // num_groups, (group + 1) * num_rows // num_groups
            visible = min(count, _visible(a, base, high - 1, group_size, start, end) - first)
            if _hidden(a, base, low, group_size, start, end) >= first + TILE:
                visible = 0
            for d in range(0, width if visible > 0 else 0, TILE):
                add_matmul(
                    high - low,
                    scores + 4 * (low * CHUNK + first),
                    4 * CHUNK,
                    tile + 4 * d,
                    4 * width,
                    out + 4 * (low * width + d),
                    4 * width,
                    visible,
                )


# --- partial results ------------------------------------------------------------------------------


@njit(error_model="numpy")
def _clear(partial, num_rows, width):
    """The result over no keys: maxima, then sums, then rows of values."""
    cleared = carray(pointer(partial), num_rows * (2 + width), dtype=np.float32)
    cleared[:num_rows] = _MINUS_INFINITY
    cleared[num_rows:] = 0.0


@njit(error_model="numpy")
def _merge(total, partial, num_rows, width):
    """Add a partial result to a total."""
    size = num_rows * (2 + width)
    to = carray(pointer(total), size, dtype=np.float32)
    of = carray(pointer(partial), size, dtype=np.float32)
    for r in range(num_rows):
        if of[num_rows + r] > 0.0 or np.isnan(of[num_rows + r]):
            highest = max(to[r], of[r])
            keep, add = np.exp2(to[r] - highest), np.exp2(of[r] - highest)
            to[r] = highest
            to[num_rows + r] = to[num_rows + r] * keep + of[num_rows + r] * add
            first = 2 * num_rows + r * width
            for d in range(first, first + width):
                to[d] = to[d] * keep + of[d] * add


@njit(error_model="numpy")
def _write_out(a, first_token, kv_head, num_rows, total, width):
    """Divide by the sums and round to the rows of the output [num_tokens, num_heads, head_dim]."""
    group_size = a.num_heads // a.num_kv_heads
    sums = carray(pointer(total + 4 * num_rows), num_rows, dtype=np.float32)
    for r in range(num_rows):
        row = total + 4 * (2 * num_rows + r * width)
        values = carray(pointer(row), a.head_dim, dtype=np.float32)
        factor = np.float32(1.0) / sums[r] if sums[r] != 0.0 else np.float32(0.0)
        for d in range(a.head_dim):
            values[d] *= factor
        token, head = first_token + r // group_size, kv_head * group_size + r % group_size
        place = (token * a.num_heads + head) * a.head_dim
        store_row(row, a.out + place * size_of(a.query_dtype), a.query_dtype, a.head_dim)


# --- items ----------------------------------------------------------------------------------------


@njit(error_model="numpy")
def _tile(a, index):
    """(sequence, first token, number of rows, position of the first token) of a tile."""
    sequence, offset = carray(pointer(a.tiles), (a.num_tiles, 2), dtype=np.int64)[index]
    starts = carray(pointer(a.query_start_loc), a.num_seqs + 1, dtype=np.int32)
    seq_len = np.int64(carray(pointer(a.seq_lens), a.num_seqs, dtype=np.int32)[sequence])
    query_len = np.int64(starts[sequence + 1]) - np.int64(starts[sequence])
    num_tokens = min(a.tokens_per_tile, query_len - offset)
    num_rows = num_tokens * (a.num_heads // a.num_kv_heads)
    return sequence, starts[sequence] + offset, num_rows, seq_len - query_len + offset


@njit(error_model="numpy")
def _load_query(a, first_token, kv_head, num_rows, query):
    group_size = a.num_heads // a.num_kv_heads
    factor = np.float32(a.scale * _LOG2_E)
    if a.soft_cap > 0.0:  # what `cap_row` asks for
        factor = np.float32(2.0 * a.scale * _LOG2_E / a.soft_cap)
    for r in range(num_rows):
        token, head = first_token + r // group_size, kv_head * group_size + r % group_size
        place = token * a.query_token_stride + head * a.query_head_stride
        row = query + 4 * r * a.head_dim
        load_row(a.query + place * size_of(a.query_dtype), a.query_dtype, row, a.head_dim)
        values = carray(pointer(row), a.head_dim, dtype=np.float32)
        for d in range(a.head_dim):
            values[d] *= factor


@njit(error_model="numpy")
def _attend_chunk(a, sequence, kv_head, base, num_rows, start, end, scratch, partial):
    keys, values = scratch[4], scratch[5]
    hidden, skipped = _hidden(a, base, 0, 1, start, end), _skipped(a, base, start, end)
    find_rows(a, sequence, kv_head, start, end, hidden, keys, values, scratch[6])
    prefetch_rows(a, keys, skipped, end - start)
    _score(a, base, num_rows, start, end, scratch)
    prefetch_rows(a, values, skipped, end - start)
    _softmax(a, base, num_rows, start, end, scratch[1], partial)
    _weigh(a, base, num_rows, start, end, scratch, partial + 8 * num_rows)


@njit(error_model="numpy")
def _attend_item(a, item, scratch, partial, total):
    """One item: all chunks that a tile sees, or one of them when `num_chunks` is not 0."""
    chunks_per_tile = max(1, a.num_chunks)
    chunk, kv_head = item % chunks_per_tile, item // chunks_per_tile % a.num_kv_heads
    index = item // chunks_per_tile // a.num_kv_heads
    sequence, first_token, num_rows, base = _tile(a, index)
    width = (a.head_dim + TILE - 1) // TILE * TILE
    num_keys = max(0, base + num_rows // (a.num_heads // a.num_kv_heads))
    first = max(0, base + 1 - a.window) // CHUNK * CHUNK
    _load_query(a, first_token, kv_head, num_rows, scratch[0])
    if a.num_chunks > 0:
        start = first + chunk * CHUNK
        target = a.partials + item * a.partial_size
        _clear(target, num_rows, width)
        if start < num_keys:
            end = min(start + CHUNK, num_keys)
            _attend_chunk(a, sequence, kv_head, base, num_rows, start, end, scratch, target)
        return
    _clear(total, num_rows, width)
    for start in range(first, num_keys, CHUNK):
        end = min(start + CHUNK, num_keys)
        _attend_chunk(a, sequence, kv_head, base, num_rows, start, end, scratch, partial)
        _merge(total, partial, num_rows, width)
    _write_out(a, first_token, kv_head, num_rows, total, width)


@routine
def plan(address):
    """List the tiles, the heaviest of a sequence first, and count items and chunks. Returns the work in key rows."""
    a = carray(pointer(address), 1, dtype=_ARGUMENTS)[0]
    starts = carray(pointer(a.query_start_loc), a.num_seqs + 1, dtype=np.int32)
    seq_lens = carray(pointer(a.seq_lens), a.num_seqs, dtype=np.int32)
    tiles = carray(pointer(a.tiles), 2 * a.max_tiles, dtype=np.int64)
    count, most_chunks, work = 0, 0, 0
    for s in range(a.num_seqs):
        query_len = np.int64(starts[s + 1]) - np.int64(starts[s])
        num_tiles = (query_len + a.tokens_per_tile - 1) // a.tokens_per_tile
        for i in range(num_tiles):
            tiles[2 * (count + i)] = s
            tiles[2 * (count + i) + 1] = (num_tiles - 1 - i) * a.tokens_per_tile
        count += num_tiles
        num_keys = min(np.int64(seq_lens[s]), a.window + a.tokens_per_tile - 1)  # that a tile sees
        of_window = (num_keys + CHUNK - 2) // CHUNK + 1  # wherever it begins
        num_chunks = min((np.int64(seq_lens[s]) + CHUNK - 1) // CHUNK, of_window)
        most_chunks = max(most_chunks, num_chunks)
        work += num_tiles * num_keys
    a.num_tiles = count
    a.num_items = count * a.num_kv_heads
    a.num_chunks = 0
    if a.num_items < a.wanted_items and most_chunks > 1:
        a.num_chunks = most_chunks
        a.num_items *= a.num_chunks
    return work * a.num_kv_heads


@routine
def attend(address):
    a = carray(pointer(address), 1, dtype=_ARGUMENTS)[0]
    rows_per_tile = a.tokens_per_tile * (a.num_heads // a.num_kv_heads)
    query = a.scratch + atomic_add(address + 8, 1) * a.slot_size
    scores = query + 4 * rows_per_tile * a.head_dim
    partial = scores + 4 * rows_per_tile * CHUNK
    total = partial + a.partial_size
    width = (a.head_dim + TILE - 1) // TILE * TILE
    tile = total + a.partial_size
    keys = tile + 4 * TILE * width
    values = keys + 8 * CHUNK
    spare = values + 8 * CHUNK
    zeros = spare + 4 * a.head_dim
    carray(pointer(zeros), a.head_dim, dtype=np.float32)[:] = 0.0
    scratch = (query, scores, tile, spare, keys, values, zeros)
    while True:
        item = atomic_add(address, 1)
        if item >= a.num_items:
            return 0
        _attend_item(a, item, scratch, partial, total)


@routine
def finish(address):
    """Merge the partial results of every tile and KV head, in the order of their chunks."""
    a = carray(pointer(address), 1, dtype=_ARGUMENTS)[0]
    width = (a.head_dim + TILE - 1) // TILE * TILE
    for item in range(a.num_tiles * a.num_kv_heads):
        _, first_token, num_rows, _ = _tile(a, item // a.num_kv_heads)
        _clear(a.scratch, num_rows, width)
        for chunk in range(a.num_chunks):
            partial = a.partials + (item * a.num_chunks + chunk) * a.partial_size
            _merge(a.scratch, partial, num_rows, width)
        _write_out(a, first_token, item % a.num_kv_heads, num_rows, a.scratch, width)
    return 0
