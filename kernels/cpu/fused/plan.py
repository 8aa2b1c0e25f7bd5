"""Turns the runs of tokens of a step into rows, tiles and attention work; done by the calling thread before the others.

A group is up to 32 consecutive rows of one sequence. Usually one entry takes all chunks of keys of a group; when there
are too few groups to keep all threads busy, each chunk of a group of few rows is an entry of its own.
"""

from kernels.cpu.fused.fetching import forget_taken
from kernels.cpu.fused.last_layer import set_targets
from kernels.cpu.fused.layout import (
    BLOCK_TABLES,
    CHUNK_TOKENS,
    E_END_CHUNK,
    E_FIRST_CHUNK,
    E_GROUP,
    E_IS_SPLIT,
    ENTRIES,
    ENTRY_SLOTS,
    G_ITEMS,
    G_NUM_ROWS,
    G_PARTIAL,
    G_REMAINING,
    G_ROW,
    G_TILES,
    GROUP_ROWS,
    GROUP_SLOTS,
    GROUPS,
    MAX_PARTIALS,
    NUM_ENTRIES,
    NUM_GROUPS,
    NUM_KV_HEADS,
    NUM_SEQS,
    NUM_SEQUENCE_TILES,
    NUM_THREADS,
    ROW_CLEARS,
    ROW_POSITIONS,
    ROW_SLOTS,
    SEQ_POSITIONS,
    SEQ_ROWS,
    SEQ_TABLES,
    TABLE_PADDING,
    TILE_TOKENS,
    TILES,
    TILES_PER_BLOCK,
)
from kernels.cpu.ir_tools import routine
from kernels.cpu.memory import load_i32, load_i64, store_i32, store_i64

MAX_SPLIT_ROWS = 8
ITEMS_PER_THREAD = 8
"""Attention items for each thread from which on groups are not split."""


@routine
def plan(h):
    """Fills rows, tiles, groups and entries from the step's inputs."""
    set_targets(h)
    tile_base, groups = 0, 0
    for seq in range(h[NUM_SEQS]):
        row, end = load_i32(h[SEQ_ROWS] + 4 * seq), load_i32(h[SEQ_ROWS] + 4 * seq + 4)
        position = load_i32(h[SEQ_POSITIONS] + 4 * seq)
        num_tiles = (position + end - row - 1) // TILE_TOKENS + 1
        _expand_table(h, load_i32(h[SEQ_TABLES] + 4 * seq), tile_base, num_tiles)
        _place_rows(h, row, end, position, tile_base)
        while row < end:
            group = h[GROUPS] + groups * GROUP_SLOTS * 8
            store_i64(group + 8 * G_ROW, row)
            store_i64(group + 8 * G_NUM_ROWS, min(GROUP_ROWS, end - row))
            store_i64(group + 8 * G_TILES, tile_base)
            groups += 1
            row += GROUP_ROWS
        tile_base += num_tiles
    for i in range(TABLE_PADDING):
        store_i32(h[TILES] + 4 * (tile_base + i), 0)
    h[NUM_GROUPS], h[NUM_SEQUENCE_TILES] = groups, tile_base
    forget_taken(h)
    _make_entries(h, groups)


@routine
def _expand_table(h, table, tile_base, num_tiles):
    """A block of the engine is one or more tiles."""
    per_block = h[TILES_PER_BLOCK]
    for tile in range(num_tiles):
        block = load_i32(h[BLOCK_TABLES] + 4 * (table + tile // per_block))
        store_i32(h[TILES] + 4 * (tile_base + tile), block * per_block + tile % per_block)


@routine
def _place_rows(h, row, end, position, tile_base):
    """Where every row's key and value go. The last row clears what follows it in a tile that this run has begun."""
    for i in range(end - row):
        at = position + i
        tile, offset = load_i32(h[TILES] + 4 * (tile_base + at // TILE_TOKENS)), at % TILE_TOKENS
        store_i32(h[ROW_POSITIONS] + 4 * (row + i), at)
        store_i32(h[ROW_SLOTS] + 4 * (row + i), tile * TILE_TOKENS + offset)
        is_last, is_begun_here = row + i == end - 1, at - offset >= position
        store_i32(h[ROW_CLEARS] + 4 * (row + i), 1 if is_last and is_begun_here else 0)


@routine
def _make_entries(h, groups):
    """Long groups first: the last rows of a prompt see the most keys."""
    wants_split = groups * h[NUM_KV_HEADS] < ITEMS_PER_THREAD * h[NUM_THREADS]
    entries, partials = 0, 0
    for index in range(groups - 1, -1, -1):
        group = h[GROUPS] + index * GROUP_SLOTS * 8
        rows = load_i64(group + 8 * G_NUM_ROWS)
        last = load_i64(group + 8 * G_ROW) + rows - 1
        chunks = load_i32(h[ROW_POSITIONS] + 4 * last) // CHUNK_TOKENS + 1
        fits = rows <= MAX_SPLIT_ROWS and partials + rows * chunks <= h[MAX_PARTIALS]
        parts = chunks if wants_split and fits and chunks > 1 else 1
        for part in range(parts):
            entry = h[ENTRIES] + entries * ENTRY_SLOTS * 8
            store_i64(entry + 8 * E_GROUP, index)
            store_i64(entry + 8 * E_FIRST_CHUNK, part)
            store_i64(entry + 8 * E_END_CHUNK, part + 1 if parts > 1 else chunks)
            store_i64(entry + 8 * E_IS_SPLIT, 1 if parts > 1 else 0)
            entries += 1
        store_i64(group + 8 * G_PARTIAL, partials)
        store_i64(group + 8 * G_ITEMS, parts * h[NUM_KV_HEADS])
        store_i64(group + 8 * G_REMAINING, parts * h[NUM_KV_HEADS])
        partials += rows * chunks if parts > 1 else 0
    h[NUM_ENTRIES] = entries
