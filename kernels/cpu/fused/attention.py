"""Paged attention over bfloat16 (or 8-bit: attention_int8.py) keys and values for groups of query rows.

    KV pool = [layer][tile][KV head][keys: HEAD_DIM/2 pairs x 16 tokens x 2 | values: 8 token pairs x HEAD_DIM x 2]
    a tile holds 16 tokens; key pair i is (k[i], k[i + HEAD_DIM/2]), value word t, d is (v[2t][d], v[2t+1][d])

Keys are attended in chunks of 256 from position 0 on. A chunk gives (largest score m, sum s of e^(score - m), weighted
values o); chunks are merged one after another in ascending order, by the thread that computed them or, when the chunks
of a group are spread over threads, by the one that finishes last. Both do the same arithmetic, so a row's result depends
on its own keys only. FlashAttention's online softmax, arXiv:2205.14135; PagedAttention, arXiv:2309.06180.
"""

from kernels.cpu.fused.attention_int8 import softmax_int8
from kernels.cpu.fused.attention_kernels import (
    MAX_HEAD_DIM,
    MAX_TILE_ROWS,
    SCORE_STRIDE,
    SCRATCH_TAIL,
    TILES_BYTES,
    WEIGHT_STRIDE,
    finish_state,
    merge_state,
    softmax,
    start_state,
)
from kernels.cpu.fused.attention_products import (
    score_tile,
    score_tile_int8,
    weigh_tile,
    weigh_tile_int8,
)
from kernels.cpu.fused.last_layer import NOT_LEFT, is_any_left, target_of
from kernels.cpu.fused.layout import (
    ATTENDED,
    CHUNK_TILES,
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
    GROUP_SLOTS,
    GROUPS,
    HEAD_DIM,
    HEAD_TILE_BYTES,
    KV,
    KV_IS_INT8,
    MAX_ROWS,
    NUM_ENTRIES,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_THREADS,
    NUM_TILES,
    NUMBERS,
    PARTIALS,
    QUERIES,
    QUERY_FACTORS,
    RECORDS,
    ROW_POSITIONS,
    SCRATCH,
    SCRATCH_BYTES,
    STATE_PADDING,
    TILE_TOKENS,
    TILES,
)
from kernels.cpu.fused.quantize import GROUP, RECORD_BYTES, quantize_row, settle_row
from kernels.cpu.ir_tools import formula, routine
from kernels.cpu.memory import atomic_add, load_i32, load_i64, store_i64


@routine
def attend(h, layer, thread, begin, end):
    """Attention of items begin to end: item = entry * NUM_KV_HEADS + KV head."""
    for item in range(begin, end):
        entry, group = _entry(h, item), _group(h, item)
        row, num_rows = load_i64(group + 8 * G_ROW), load_i64(group + 8 * G_NUM_ROWS)
        if not is_any_left(h, layer, row, num_rows):
            continue
        _attend_entry(h, layer, thread, item)
        if atomic_add(group + 8 * G_REMAINING, -1) == 1:
            _finish_group(h, layer, thread, entry, group)
            store_i64(group + 8 * G_REMAINING, load_i64(group + 8 * G_ITEMS))


@formula
def _entry(h, item):
    return h[ENTRIES] + item // h[NUM_KV_HEADS] * ENTRY_SLOTS * 8


@formula
def _group(h, item):
    return h[GROUPS] + load_i64(_entry(h, item) + 8 * E_GROUP) * GROUP_SLOTS * 8


@routine
def _attend_entry(h, layer, thread, item):
    """Chunk by chunk, so that a chunk's keys and values are read from cache for all rows but the first."""
    head_dim, num_heads, kv_head = h[HEAD_DIM], h[NUM_HEADS], item % h[NUM_KV_HEADS]
    per_kv, vectors = num_heads // h[NUM_KV_HEADS], head_dim // 16
    entry, group = _entry(h, item), _group(h, item)
    row, num_rows = load_i64(group + 8 * G_ROW), load_i64(group + 8 * G_NUM_ROWS)
    first, end = load_i64(entry + 8 * E_FIRST_CHUNK), load_i64(entry + 8 * E_END_CHUNK)
    is_split = load_i64(entry + 8 * E_IS_SPLIT)
    states = h[SCRATCH] + thread * h[SCRATCH_BYTES]
    state_bytes = (head_dim + STATE_PADDING) * 4
    if not is_split:
        for r in range(num_rows * per_kv):
            start_state(states + r * state_bytes, vectors)
    for chunk in range(first, end):
        _list_tiles(h, layer, states, item, chunk, end)
        _attend_chunk(h, states, group, kv_head, chunk, is_split)
    if not is_split:
        for r in range(num_rows * per_kv):
            head = kv_head * per_kv + r % per_kv
            target = h[ATTENDED] + ((row + r // per_kv) * num_heads + head) * head_dim * 4
            finish_state(states + r * state_bytes, vectors, target)


@formula
def _list_tiles(h, layer, states, item, chunk, end):
    """Lists the chunk's tiles, and those of the chunk that this thread most likely takes next, of this item or another."""
    tiles = states + h[SCRATCH_BYTES] - SCRATCH_TAIL
    _list_chunk(h, layer, item, chunk, tiles)
    next_item, next_chunk = item, chunk + 1
    if next_chunk == end:
        next_item = min(item + h[NUM_THREADS], h[NUM_ENTRIES] * h[NUM_KV_HEADS] - 1)
        next_chunk = load_i64(_entry(h, next_item) + 8 * E_FIRST_CHUNK)
    _list_chunk(h, layer, next_item, next_chunk, tiles + CHUNK_TILES * 8)


@routine
def _list_chunk(h, layer, item, chunk, target):
    """Writes the addresses of a chunk's tiles; behind a sequence's last tile stand others of the table, or its padding."""
    table = h[TILES] + (load_i64(_group(h, item) + 8 * G_TILES) + chunk * CHUNK_TILES) * 4
    base, heads, size = layer * h[NUM_TILES], h[NUM_KV_HEADS], h[HEAD_TILE_BYTES]
    for i in range(CHUNK_TILES):
        index = (base + load_i32(table + 4 * i)) * heads + item % heads
        store_i64(target + 8 * i, h[KV] + index * size)


@routine
def _attend_chunk(h, states, group, kv_head, chunk, is_split):
    head_dim, num_heads = h[HEAD_DIM], h[NUM_HEADS]
    per_kv, vectors = num_heads // h[NUM_KV_HEADS], head_dim // 16
    row, num_rows = load_i64(group + 8 * G_ROW), load_i64(group + 8 * G_NUM_ROWS)
    state_bytes = (head_dim + STATE_PADDING) * 4
    first_query = (kv_head * h[MAX_ROWS] + row) * per_kv
    tiles = states + h[SCRATCH_BYTES] - SCRATCH_TAIL
    scores = tiles + TILES_BYTES
    weights = scores + MAX_TILE_ROWS * SCORE_STRIDE
    out = weights + MAX_TILE_ROWS * WEIGHT_STRIDE
    ends = out + MAX_TILE_ROWS * MAX_HEAD_DIM * 4
    start, total = chunk * CHUNK_TOKENS, num_rows * per_kv
    done = _first_seeing(h, row, num_rows, start) * per_kv
    while done < total:
        size = min(MAX_TILE_ROWS, total - done)
        if h[KV_IS_INT8]:
            _attend_tile_int8(h, row, done, size, first_query + done, tiles, start)
        else:
            _attend_tile(h, row, done, size, first_query + done, tiles, start)
        for r in range(size):
            sums, state = out + r * head_dim * 4, states + (done + r) * state_bytes
            if is_split:
                head = kv_head * per_kv + (done + r) % per_kv
                slot = _partial_slot(h, group, (done + r) // per_kv, chunk)
                state = h[PARTIALS] + (slot * num_heads + head) * state_bytes
                start_state(state, vectors)
            merge_state(state, sums, ends + 8 * r, vectors)
        done += size


@formula
def _num_seen(h, row, start):
    """How many keys of the chunk a row sees."""
    return min(load_i32(h[ROW_POSITIONS] + 4 * row) + 1 - start, CHUNK_TOKENS)


@routine
def _attend_tile(h, row, done, size, query, tiles, start):
    """Weighted values, largest score and sum of up to 6 rows of a group over a chunk, left behind the scores."""
    head_dim, per_kv = h[HEAD_DIM], h[NUM_HEADS] // h[NUM_KV_HEADS]
    scores = tiles + TILES_BYTES
    weights = scores + MAX_TILE_ROWS * SCORE_STRIDE
    out = weights + MAX_TILE_ROWS * WEIGHT_STRIDE
    ends = out + MAX_TILE_ROWS * MAX_HEAD_DIM * 4
    seen = _num_seen(h, row + (done + size - 1) // per_kv, start)
    count = (seen + TILE_TOKENS - 1) // TILE_TOKENS
    score_tile(size, h[QUERIES] + query * head_dim * 2, 0, tiles, count, head_dim // 2, scores)
    for r in range(size):
        valid = _num_seen(h, row + (done + r) // per_kv, start)
        softmax(scores + r * SCORE_STRIDE, valid, count, weights + r * WEIGHT_STRIDE, ends + 8 * r)
    weigh_tile(size, weights, 0, tiles, count, head_dim, out, head_dim * 4)


@routine
def _attend_tile_int8(h, row, done, size, query, tiles, start):
    """The same over keys and values of 8 bits."""
    head_dim, per_kv = h[HEAD_DIM], h[NUM_HEADS] // h[NUM_KV_HEADS]
    scores = tiles + TILES_BYTES
    weights = scores + MAX_TILE_ROWS * SCORE_STRIDE
    out = weights + MAX_TILE_ROWS * WEIGHT_STRIDE
    ends = out + MAX_TILE_ROWS * MAX_HEAD_DIM * 4
    factors, scales = ends + MAX_TILE_ROWS * 8, head_dim * TILE_TOKENS * 2 + TILE_TOKENS * 2
    seen = _num_seen(h, row + (done + size - 1) // per_kv, start)
    count = (seen + TILE_TOKENS - 1) // TILE_TOKENS
    q, of_queries = h[QUERIES] + query * head_dim * 2, h[QUERY_FACTORS] + query * 4
    score_tile_int8(size, q, of_queries, tiles, count, head_dim // 2, scores)
    for r in range(size):
        valid = _num_seen(h, row + (done + r) // per_kv, start)
        s, p = scores + r * SCORE_STRIDE, weights + r * WEIGHT_STRIDE
        softmax_int8(s, valid, tiles, count, scales, p, ends + 8 * r, factors + 4 * r)
    weigh_tile_int8(size, weights, factors, tiles, count, head_dim, out, head_dim * 4)


@formula
def _first_seeing(h, row, num_rows, start):
    """Rows of the group before this one are before the chunk and see none of its keys."""
    first = load_i32(h[ROW_POSITIONS] + 4 * row)
    return min(max(start - first, 0), num_rows)


@formula
def _partial_slot(h, group, index, chunk):
    """Where chunk `chunk` of row `index` of a split group stands: every row has room for the last row's chunks."""
    last = load_i64(group + 8 * G_ROW) + load_i64(group + 8 * G_NUM_ROWS) - 1
    chunks = load_i32(h[ROW_POSITIONS] + 4 * last) // CHUNK_TOKENS + 1
    return load_i64(group + 8 * G_PARTIAL) + index * chunks + chunk


@routine
def _finish_group(h, layer, thread, entry, group):
    """Everything of a group is computed: merge what was spread over threads, then quantise its rows for the next layer."""
    num_heads, head_dim = h[NUM_HEADS], h[HEAD_DIM]
    row, num_rows = load_i64(group + 8 * G_ROW), load_i64(group + 8 * G_NUM_ROWS)
    width = num_heads * head_dim
    groups = width // GROUP
    for index in range(num_rows):
        target = target_of(h, layer, row + index)
        if target == NOT_LEFT:
            continue
        attended = h[ATTENDED] + (row + index) * width * 4
        if load_i64(entry + 8 * E_IS_SPLIT):
            _merge_row(h, thread, group, index, attended)
        numbers = h[NUMBERS] + target * width
        records = h[RECORDS] + target * groups * RECORD_BYTES
        quantize_row(attended, numbers, records, groups)
        settle_row(records, groups)


@routine
def _merge_row(h, thread, group, index, attended):
    num_heads, head_dim = h[NUM_HEADS], h[HEAD_DIM]
    vectors, state_bytes = head_dim // 16, (head_dim + STATE_PADDING) * 4
    position = load_i32(h[ROW_POSITIONS] + 4 * (load_i64(group + 8 * G_ROW) + index))
    state = h[SCRATCH] + thread * h[SCRATCH_BYTES]
    for head in range(num_heads):
        start_state(state, vectors)
        for chunk in range(position // CHUNK_TOKENS + 1):
            slot = _partial_slot(h, group, index, chunk)
            partial = h[PARTIALS] + (slot * num_heads + head) * state_bytes
            merge_state(state, partial, partial + head_dim * 4, vectors)
        finish_state(state, vectors, attended + head * head_dim * 4)
