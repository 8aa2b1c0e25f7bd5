"""One engine step in one compiled call: embedding, all layers, logits.

Phases of a layer, each complete before the next begins (see threads.py):
    norm + quantise | q, k, v with bias, norm, rotation and KV store | attention + quantise | output projection |
    add + norm + quantise | gate, up, silu, multiply + quantise | down projection
"""

import numba

from kernels.cpu.fused.attention import attend
from kernels.cpu.fused.attention_kernels import SCRATCH_TAIL
from kernels.cpu.fused.ir_tools import formula, routine
from kernels.cpu.fused.layout import (
    ACT_NUMBERS,
    ACT_RECORDS,
    COSINES,
    DELTA,
    EMBEDDING,
    EPSILON,
    FINAL_NORM,
    HEAD,
    HEAD_DIM,
    HEAD_TILE_BYTES,
    HEADS_PER_UNIT,
    HIDDEN,
    INTERMEDIATE,
    JOB,
    KV,
    KV_IS_INT8,
    L_DOWN,
    L_GATE_UP,
    L_INPUT_NORM,
    L_K_NORM,
    L_OUTPUT,
    L_POST_NORM,
    L_Q_NORM,
    L_QKV,
    L_QKV_BIAS,
    LAYER_SLOTS,
    LAYERS,
    LOGITS,
    MAX_ROWS,
    NUM_ENTRIES,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    NUM_OUTPUTS,
    NUM_ROWS,
    NUM_THREADS,
    NUM_TILES,
    NUMBERS,
    OUTPUT_ROWS,
    QUERIES,
    QUERY_FACTORS,
    RECORDS,
    ROW_CLEARS,
    ROW_POSITIONS,
    ROW_SLOTS,
    SCRATCH,
    SCRATCH_BYTES,
    SEMAPHORE,
    SINES,
    SOFTMAX_SCALE,
    STEP,
    STEP_NUMBER,
    STOP,
    TILE_TOKENS,
    TOKEN_IDS,
    VOCAB_BLOCKS,
    X,
)
from kernels.cpu.fused.layout import GENERATION as GENERATION_SLOT
from kernels.cpu.fused.linear import BLOCK_COLUMNS, multiply, unpack_row
from kernels.cpu.fused.memory import (
    atomic_load,
    fill_zero,
    float_from_bits,
    load_i32,
    load_i64,
    semaphore_post,
)
from kernels.cpu.fused.plan import plan
from kernels.cpu.fused.quantize import (
    GROUP,
    RECORD_BYTES,
    add_norm_quantize,
    silu_multiply_quantize,
)
from kernels.cpu.fused.rotary import (
    add_bias,
    norm_head,
    rotate_to_pairs,
    store_key,
    store_value,
)
from kernels.cpu.fused.rotary_int8 import (
    pack_key,
    pack_query,
    pack_value,
    rotate_head,
    store_key_int8,
)
from kernels.cpu.fused.row_jobs import run_records
from kernels.cpu.fused.threads import CLOSED, close_phases, open_phases, phase, wait_for_job

PANEL_ROWS = 96
"""Rows that one item of a linear layer takes, at most: their inputs stay in the L2 cache."""
PANEL_BYTES = 1 << 18
MAX_ITEM_BLOCKS = 16
GATE_UP_UNITS = 2
"""Units (32 gates and their 32 ups, two blocks) of one gate-up item, at most."""
ITEMS_PER_THREAD = 6
PHASES_PER_LAYER = 7
OTHER_PHASES = 3
MAX_ROW_ITEM = 4


@formula
def _layer(h, layer, slot):
    return load_i64(h[LAYERS] + (layer * LAYER_SLOTS + slot) * 8)


@formula
def _panel_rows(num_inputs):
    return max(min(PANEL_BYTES // num_inputs // 6 * 6, PANEL_ROWS), 6)


@formula
def _num_panels(num_rows, num_inputs):
    size = _panel_rows(num_inputs)
    return (num_rows + size - 1) // size


@formula
def _item_blocks(h, num_blocks, most):
    """Blocks of one item: few enough that all threads have work, many enough that claiming costs little."""
    return max(min(num_blocks // (h[NUM_THREADS] * ITEMS_PER_THREAD), most), 1)


@formula
def _following(h, first, num_blocks):
    """The first block of the item that this thread will most likely claim after the one of `num_blocks` from `first`."""
    return first + h[NUM_THREADS] * num_blocks


@phase
@routine
def _embed(h, layer, thread, begin, end):
    hidden = h[HIDDEN]
    for row in range(begin, end):
        token = load_i32(h[TOKEN_IDS] + 4 * row)
        unpack_row(h[EMBEDDING], token, hidden, h[X] + row * hidden * 4)
        fill_zero(h[DELTA] + row * hidden * 4, hidden * 4)


@formula
def _norm_row(h, weight, row, target):
    """Adds the pending delta to a row of the residual stream and quantises its norm as row `target` of the inputs."""
    hidden = h[HIDDEN]
    groups = hidden // GROUP
    numbers, records = h[NUMBERS] + target * hidden, h[RECORDS] + target * groups * RECORD_BYTES
    x, delta = h[X] + row * hidden * 4, h[DELTA] + row * hidden * 4
    add_norm_quantize(x, delta, weight, numbers, records, groups, float_from_bits(h[EPSILON]))


@phase
@routine
def _norm_before_attention(h, layer, thread, begin, end):
    for row in range(begin, end):
        _norm_row(h, _layer(h, layer, L_INPUT_NORM), row, row)


@phase
@routine
def _norm_before_mlp(h, layer, thread, begin, end):
    for row in range(begin, end):
        _norm_row(h, _layer(h, layer, L_POST_NORM), row, row)


@phase
@routine
def _norm_outputs(h, layer, thread, begin, end):
    for output in range(begin, end):
        _norm_row(h, h[FINAL_NORM], load_i32(h[OUTPUT_ROWS] + 4 * output), output)


@formula
def _num_units(h, num_heads):
    return (num_heads + h[HEADS_PER_UNIT] - 1) // h[HEADS_PER_UNIT]


@formula
def _qkv_units(h):
    return _num_units(h, h[NUM_HEADS]) + 2 * _num_units(h, h[NUM_KV_HEADS])


@phase
@routine
def _project_heads(h, layer, thread, begin, end):
    """An item is a unit (1 or 2 heads of queries, keys or values) for a panel of rows."""
    units, hidden, size = _qkv_units(h), h[HIDDEN], _panel_rows(h[HIDDEN])
    columns = h[HEADS_PER_UNIT] * h[HEAD_DIM]
    blocks, scratch = columns // BLOCK_COLUMNS, h[SCRATCH] + thread * h[SCRATCH_BYTES]
    for item in range(begin, end):
        unit, row = item % units, item // units * size
        rows = min(size, h[NUM_ROWS] - row)
        numbers = h[NUMBERS] + row * hidden
        records = h[RECORDS] + row * (hidden // GROUP) * RECORD_BYTES
        table = _layer(h, layer, L_QKV)
        first = unit * blocks
        end, following = first + blocks, _following(h, first, blocks)
        multiply(table, first, end, following, hidden, numbers, records, rows, scratch, columns * 4)
        for r in range(rows):
            _finish_unit(h, layer, thread, unit, row + r, scratch + r * columns * 4)


@routine
def _finish_unit(h, layer, thread, unit, row, values):
    """Bias, then what queries, keys and values need each."""
    bias, columns = _layer(h, layer, L_QKV_BIAS), h[HEADS_PER_UNIT] * h[HEAD_DIM]
    if bias:
        add_bias(values, bias + unit * columns * 4, columns // 16)
    q_units, kv_units = _num_units(h, h[NUM_HEADS]), _num_units(h, h[NUM_KV_HEADS])
    for i in range(h[HEADS_PER_UNIT]):
        head_values = values + i * h[HEAD_DIM] * 4
        if unit < q_units:
            head = unit * h[HEADS_PER_UNIT] + i
            if head < h[NUM_HEADS]:
                _store_query(h, layer, thread, row, head, head_values)
        elif unit < q_units + kv_units:
            head = (unit - q_units) * h[HEADS_PER_UNIT] + i
            if head < h[NUM_KV_HEADS]:
                _store_key(h, layer, thread, row, head, head_values)
        else:
            head = (unit - q_units - kv_units) * h[HEADS_PER_UNIT] + i
            if head < h[NUM_KV_HEADS]:
                _store_value(h, layer, row, head, head_values)


@formula
def _rotate(h, row, values, scale, pairs):
    half = h[HEAD_DIM] // 2
    angle = load_i32(h[ROW_POSITIONS] + 4 * row) * half * 4
    rotate_to_pairs(values, h[COSINES] + angle, h[SINES] + angle, half, scale, pairs)


@routine
def _rotate_in_float32(h, thread, row, values, scale):
    """Address of the rotated head [HEAD_DIM], its largest magnitude behind it, and room for its 8-bit pairs behind that."""
    half = h[HEAD_DIM] // 2
    angle = load_i32(h[ROW_POSITIONS] + 4 * row) * half * 4
    rotated = h[SCRATCH] + (thread + 1) * h[SCRATCH_BYTES] - SCRATCH_TAIL
    largest = rotated + h[HEAD_DIM] * 4
    rotate_head(values, h[COSINES] + angle, h[SINES] + angle, half, scale, rotated, largest)
    return rotated


@formula
def _norm_head_if_any(h, weight, values):
    if weight:
        norm_head(values, weight, h[HEAD_DIM] // 16, float_from_bits(h[EPSILON]))


@routine
def _store_query(h, layer, thread, row, head, values):
    per_kv = h[NUM_HEADS] // h[NUM_KV_HEADS]
    _norm_head_if_any(h, _layer(h, layer, L_Q_NORM), values)
    index = (head // per_kv * h[MAX_ROWS] + row) * per_kv + head % per_kv
    pairs, scale = h[QUERIES] + index * h[HEAD_DIM] * 2, float_from_bits(h[SOFTMAX_SCALE])
    if h[KV_IS_INT8]:
        rotated = _rotate_in_float32(h, thread, row, values, scale)
        largest = rotated + h[HEAD_DIM] * 4
        pack_query(rotated, h[HEAD_DIM] // 2, largest, pairs, h[QUERY_FACTORS] + index * 4)
    else:
        _rotate(h, row, values, scale, pairs)


@routine
def _store_key(h, layer, thread, row, head, values):
    _norm_head_if_any(h, _layer(h, layer, L_K_NORM), values)
    slot = load_i32(h[ROW_SLOTS] + 4 * row) % TILE_TOKENS
    tile, half = _kv_tile(h, layer, row, head), h[HEAD_DIM] // 2
    if h[KV_IS_INT8]:
        rotated = _rotate_in_float32(h, thread, row, values, numba.float32(1.0))
        largest, scales = rotated + h[HEAD_DIM] * 4, tile + h[HEAD_DIM] * TILE_TOKENS * 2
        pairs = largest + 4
        pack_key(rotated, half, largest, pairs, scales + 2 * slot)
        store_key_int8(pairs, half, tile, slot)
    else:
        pairs = h[SCRATCH] + (thread + 1) * h[SCRATCH_BYTES] - SCRATCH_TAIL
        _rotate(h, row, values, numba.float32(1.0), pairs)
        store_key(pairs, half, tile, slot)


@routine
def _store_value(h, layer, row, head, values):
    slot, head_dim = load_i32(h[ROW_SLOTS] + 4 * row) % TILE_TOKENS, h[HEAD_DIM]
    tile = _kv_tile(h, layer, row, head)
    if h[KV_IS_INT8]:
        target = tile + head_dim * TILE_TOKENS + slot // 2 * head_dim * 2
        scales = tile + head_dim * TILE_TOKENS * 2 + TILE_TOKENS * 2
        pack_value(values, head_dim // 16, target, slot % 2, scales + 2 * slot)
    else:
        clears = load_i32(h[ROW_CLEARS] + 4 * row)
        store_value(values, head_dim, tile + head_dim * TILE_TOKENS * 2, slot, clears)


@formula
def _kv_tile(h, layer, row, head):
    """Address of the keys of a row's tile for one KV head; the values follow them."""
    tile = load_i32(h[ROW_SLOTS] + 4 * row) // TILE_TOKENS
    index = (layer * h[NUM_TILES] + tile) * h[NUM_KV_HEADS] + head
    return h[KV] + index * h[HEAD_TILE_BYTES]


@routine
def _project(h, table, num_inputs, numbers, records, num_rows, num_blocks, out, begin, end):
    """Items of a plain linear layer: some blocks of columns for a panel of rows."""
    blocks = _item_blocks(h, num_blocks, MAX_ITEM_BLOCKS)
    parts, size = (num_blocks + blocks - 1) // blocks, _panel_rows(num_inputs)
    out_stride, record_stride = num_blocks * BLOCK_COLUMNS * 4, num_inputs // GROUP * RECORD_BYTES
    for item in range(begin, end):
        first, row = item % parts * blocks, item // parts * size
        last = min(first + blocks, num_blocks)
        a, s = numbers + row * num_inputs, records + row * record_stride
        o = out + row * out_stride + first * BLOCK_COLUMNS * 4
        rows, following = min(size, num_rows - row), _following(h, first, blocks)
        multiply(table, first, last, following, num_inputs, a, s, rows, o, out_stride)


@formula
def _num_project_items(h, num_inputs, num_rows, num_blocks):
    blocks = _item_blocks(h, num_blocks, MAX_ITEM_BLOCKS)
    return (num_blocks + blocks - 1) // blocks * _num_panels(num_rows, num_inputs)


@phase
@routine
def _project_attention(h, layer, thread, begin, end):
    width, blocks = h[NUM_HEADS] * h[HEAD_DIM], h[HIDDEN] // BLOCK_COLUMNS
    table = _layer(h, layer, L_OUTPUT)
    _project(h, table, width, h[NUMBERS], h[RECORDS], h[NUM_ROWS], blocks, h[DELTA], begin, end)


@phase
@routine
def _project_down(h, layer, thread, begin, end):
    width, blocks = h[INTERMEDIATE], h[HIDDEN] // BLOCK_COLUMNS
    a, s = h[ACT_NUMBERS], h[ACT_RECORDS]
    _project(h, _layer(h, layer, L_DOWN), width, a, s, h[NUM_ROWS], blocks, h[DELTA], begin, end)


@phase
@routine
def _project_vocabulary(h, layer, thread, begin, end):
    a, s, rows = h[NUMBERS], h[RECORDS], h[NUM_OUTPUTS]
    _project(h, h[HEAD], h[HIDDEN], a, s, rows, h[VOCAB_BLOCKS], h[LOGITS], begin, end)


@formula
def _gate_up_parts(h):
    """Units of an item, and items of a panel."""
    units = h[INTERMEDIATE] // GROUP
    size = _item_blocks(h, units, GATE_UP_UNITS)
    return size, (units + size - 1) // size


@phase
@routine
def _gate_up(h, layer, thread, begin, end):
    hidden, width, panel = h[HIDDEN], h[INTERMEDIATE], _panel_rows(h[HIDDEN])
    units, parts = _gate_up_parts(h)
    scratch, table = h[SCRATCH] + thread * h[SCRATCH_BYTES], _layer(h, layer, L_GATE_UP)
    for item in range(begin, end):
        unit, row = item % parts * units, item // parts * panel
        rows, count = min(panel, h[NUM_ROWS] - row), min(units, width // GROUP - unit)
        a = h[NUMBERS] + row * hidden
        s = h[RECORDS] + row * (hidden // GROUP) * RECORD_BYTES
        stride, end = count * 2 * BLOCK_COLUMNS * 4, 2 * (unit + count)
        following = _following(h, 2 * unit, 2 * units)
        multiply(table, 2 * unit, end, following, hidden, a, s, rows, scratch, stride)
        for r in range(rows):
            numbers = h[ACT_NUMBERS] + (row + r) * width + unit * GROUP
            records = h[ACT_RECORDS] + ((row + r) * (width // GROUP) + unit) * RECORD_BYTES
            silu_multiply_quantize(scratch + r * stride, numbers, records, count)


_attend = phase(attend)


@routine
def _run_phases(h, thread, g):
    """Takes part in step `g` until it is over; phases count up in the order of the module docstring."""
    rows, outputs, hidden = h[NUM_ROWS], h[NUM_OUTPUTS], h[HIDDEN]
    row_item = MAX_ROW_ITEM if rows >= 8 * MAX_ROW_ITEM else 1
    qkv_items = _qkv_units(h) * _num_panels(rows, hidden)
    attention_items = h[NUM_ENTRIES] * h[NUM_KV_HEADS]
    blocks, width = hidden // BLOCK_COLUMNS, h[NUM_HEADS] * h[HEAD_DIM]
    output_items = _num_project_items(h, width, rows, blocks)
    gate_up_items = _gate_up_parts(h)[1] * _num_panels(rows, hidden)
    down_items = _num_project_items(h, h[INTERMEDIATE], rows, blocks)
    if not _embed(h, 0, thread, g, 0, rows, row_item):
        return
    for layer in range(h[NUM_LAYERS]):
        p = 1 + layer * PHASES_PER_LAYER
        if not _norm_before_attention(h, layer, thread, g, p, rows, row_item):
            return
        if not _project_heads(h, layer, thread, g, p + 1, qkv_items, 1):
            return
        if not _attend(h, layer, thread, g, p + 2, attention_items, 1):
            return
        if not _project_attention(h, layer, thread, g, p + 3, output_items, 1):
            return
        if not _norm_before_mlp(h, layer, thread, g, p + 4, rows, row_item):
            return
        if not _gate_up(h, layer, thread, g, p + 5, gate_up_items, 1):
            return
        if not _project_down(h, layer, thread, g, p + 6, down_items, 1):
            return
    p = 1 + h[NUM_LAYERS] * PHASES_PER_LAYER
    if not _norm_outputs(h, 0, thread, g, p, outputs, 1):
        return
    head_items = _num_project_items(h, hidden, outputs, h[VOCAB_BLOCKS])
    _project_vocabulary(h, 0, thread, g, p + 1, head_items, 1)


@formula
def _begin(h, num_phases):
    if h[JOB] == STEP:
        plan(h)
    h[STEP_NUMBER] = h[STEP_NUMBER] % (CLOSED - 2) + 1
    open_phases(h, h[STEP_NUMBER], num_phases)
    for _ in range(h[NUM_THREADS] - 1):
        semaphore_post(h[SEMAPHORE])


def run(h, thread):
    """Thread 0: does one job, mostly a step, and returns. Others: help with every job until STOP is set.

    h is the header (layout.py), int64 [HEADER_SLOTS].
    """
    while True:
        num_phases = h[NUM_LAYERS] * PHASES_PER_LAYER + OTHER_PHASES if h[JOB] == STEP else 1
        if thread == 0:
            _begin(h, num_phases)
        else:
            wait_for_job(h)
            if h[STOP] != 0:
                return
        # The job is read after the generation: if it is another one's, no phase has that generation's tag any more.
        g = atomic_load(h[GENERATION_SLOT])
        if h[JOB] == STEP:
            _run_phases(h, thread, g)
        else:
            run_records(h, thread, g)
        if thread == 0:
            close_phases(h, num_phases)
            return
