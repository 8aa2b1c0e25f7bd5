"""One engine step in one compiled call: embedding, all layers, logits, draws.

Phases of a layer, each complete before the next begins (see threads.py):
    norm + quantise | q, k, v with bias, norm, rotation and KV store | attention + quantise | output projection |
    add + norm + quantise | gate, up, silu, multiply + quantise | down projection
Behind the last layer: add + norm + quantise | logits, and maxima if there are draws | draws
"""

from kernels.cpu.fused.attention import attend
from kernels.cpu.fused.heads import finish_unit, layer_slot, num_units
from kernels.cpu.fused.last_layer import is_any_left, num_left, row_left
from kernels.cpu.fused.layout import (
    ACT_NUMBERS,
    ACT_RECORDS,
    DELTA,
    EMBEDDING,
    EPSILON,
    FINAL_NORM,
    HEAD,
    HEAD_DIM,
    HEADS_PER_UNIT,
    HIDDEN,
    INTERMEDIATE,
    JOB,
    L_DOWN,
    L_GATE_UP,
    L_INPUT_NORM,
    L_OUTPUT,
    L_POST_NORM,
    L_QKV,
    LOGITS,
    NUM_ENTRIES,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    NUM_OUTPUTS,
    NUM_RECORDS,
    NUM_ROWS,
    NUM_THREADS,
    NUMBERS,
    PANELS,
    RECORDS,
    SCRATCH,
    SCRATCH_BYTES,
    SEMAPHORE,
    STEP,
    STEP_NUMBER,
    STOP,
    TOKEN_IDS,
    VOCAB_BLOCKS,
    X,
)
from kernels.cpu.fused.layout import GENERATION as GENERATION_SLOT
from kernels.cpu.fused.linear import BLOCK_COLUMNS, multiply, unpack_row
from kernels.cpu.fused.plan import plan
from kernels.cpu.fused.quantize import (
    GROUP,
    RECORD_BYTES,
    add_norm_quantize,
    settle_row,
    silu_multiply_quantize,
)
from kernels.cpu.fused.row_jobs import draw_rows, find_maxima, run_records
from kernels.cpu.fused.sampling_kernels import TILE
from kernels.cpu.fused.threads import CLOSED, close_phases, open_phases, phase
from kernels.cpu.ir_tools import formula, routine
from kernels.cpu.memory import (
    atomic_add,
    atomic_load,
    fill_zero,
    float_from_bits,
    load_i32,
    semaphore_post,
    semaphore_wait,
    store_i64,
)

PANEL_ROWS = 96
"""Rows that one item of a linear layer takes, at most: their inputs stay in the L2 cache."""
PANEL_BYTES = 1 << 18
MAX_ITEM_BLOCKS = 16
TILE_BLOCKS = TILE // BLOCK_COLUMNS
GATE_UP_UNITS = 2
"""Units (32 gates and their 32 ups, two blocks) of one gate-up item, at most."""
ITEMS_PER_THREAD = 6
PHASES_PER_LAYER = 7
OTHER_PHASES = 4
MAX_ROW_ITEM = 4


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
def _hidden_item(h):
    """Blocks of one item of a layer that gives hidden states."""
    return _item_blocks(h, h[HIDDEN] // BLOCK_COLUMNS, MAX_ITEM_BLOCKS)


@formula
def _head_item(h):
    """Blocks of one item of the head, which fill whole tiles of a row's maxima."""
    return max(_item_blocks(h, h[VOCAB_BLOCKS], MAX_ITEM_BLOCKS) // TILE_BLOCKS, 1) * TILE_BLOCKS


@formula
def _following(h, first, num_blocks):
    """The first block of the item that this thread will most likely claim after the one of `num_blocks` from `first`.

    Behind a layer's last block stands the next layer's first, in the order in which a step multiplies.
    """
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
def _norm_row(h, weight, row, index):
    """Adds delta `index` to a row of the residual stream and quantises its norm as row `index` of the inputs."""
    hidden = h[HIDDEN]
    groups = hidden // GROUP
    numbers, records = h[NUMBERS] + index * hidden, h[RECORDS] + index * groups * RECORD_BYTES
    x, delta = h[X] + row * hidden * 4, h[DELTA] + index * hidden * 4
    add_norm_quantize(x, delta, weight, numbers, records, groups, float_from_bits(h[EPSILON]))
    settle_row(records, groups)


@phase
@routine
def _norm_before_attention(h, layer, thread, begin, end):
    for row in range(begin, end):
        _norm_row(h, layer_slot(h, layer, L_INPUT_NORM), row, row)


@phase
@routine
def _norm_before_mlp(h, layer, thread, begin, end):
    for index in range(begin, end):
        _norm_row(h, layer_slot(h, layer, L_POST_NORM), row_left(h, layer, index), index)


@phase
@routine
def _norm_outputs(h, layer, thread, begin, end):
    for output in range(begin, end):
        _norm_row(h, h[FINAL_NORM], row_left(h, h[NUM_LAYERS] - 1, output), output)


@formula
def _qkv_units(h):
    return num_units(h, h[NUM_HEADS]) + 2 * num_units(h, h[NUM_KV_HEADS])


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
        if unit < num_units(h, h[NUM_HEADS]) and not is_any_left(h, layer, row, rows):
            continue
        a = h[NUMBERS] + row * hidden
        s = h[RECORDS] + row * (hidden // GROUP) * RECORD_BYTES
        table, stride = layer_slot(h, layer, L_QKV), columns * 4
        first = unit * blocks
        end, following = first + blocks, _following(h, first, blocks)
        multiply(h, layer, table, first, end, following, hidden, a, s, rows, scratch, stride)
        for r in range(rows):
            finish_unit(h, layer, thread, unit, row + r, scratch + r * stride)


@routine
def _project(
    h, layer, table, num_inputs, numbers, records, num_rows, num_blocks, blocks, out, begin, end
):
    """Items of a plain linear layer: `blocks` blocks of columns for a panel of rows."""
    parts, size = (num_blocks + blocks - 1) // blocks, _panel_rows(num_inputs)
    out_stride, record_stride = num_blocks * BLOCK_COLUMNS * 4, num_inputs // GROUP * RECORD_BYTES
    for item in range(begin, end):
        first, row = item % parts * blocks, item // parts * size
        last = min(first + blocks, num_blocks)
        a, s = numbers + row * num_inputs, records + row * record_stride
        o = out + row * out_stride + first * BLOCK_COLUMNS * 4
        rows, following = min(size, num_rows - row), _following(h, first, blocks)
        multiply(h, layer, table, first, last, following, num_inputs, a, s, rows, o, out_stride)


@formula
def _num_project_items(num_inputs, num_rows, num_blocks, blocks):
    return (num_blocks + blocks - 1) // blocks * _num_panels(num_rows, num_inputs)


@phase
@routine
def _project_attention(h, layer, thread, begin, end):
    width, blocks = h[NUM_HEADS] * h[HEAD_DIM], h[HIDDEN] // BLOCK_COLUMNS
    table = layer_slot(h, layer, L_OUTPUT)
    rows, size = num_left(h, layer), _hidden_item(h)
    _project(
        h, layer + 1, table, width, h[NUMBERS], h[RECORDS], rows, blocks, size, h[DELTA], begin, end
    )


@phase
@routine
def _project_down(h, layer, thread, begin, end):
    width, blocks = h[INTERMEDIATE], h[HIDDEN] // BLOCK_COLUMNS
    table, rows, a, s = (
        layer_slot(h, layer, L_DOWN),
        num_left(h, layer),
        h[ACT_NUMBERS],
        h[ACT_RECORDS],
    )
    _project(h, layer + 1, table, width, a, s, rows, blocks, _hidden_item(h), h[DELTA], begin, end)


@phase
@routine
def _project_vocabulary(h, layer, thread, begin, end):
    a, s, rows, hidden = h[NUMBERS], h[RECORDS], h[NUM_OUTPUTS], h[HIDDEN]
    blocks, size, panel = h[VOCAB_BLOCKS], _head_item(h), _panel_rows(h[HIDDEN])
    parts = (blocks + size - 1) // size
    for item in range(begin, end):
        _project(
            h, h[NUM_LAYERS], h[HEAD], hidden, a, s, rows, blocks, size, h[LOGITS], item, item + 1
        )
        if h[NUM_RECORDS]:
            row, column = item // parts * panel, item % parts * size * BLOCK_COLUMNS
            find_maxima(h, row, min(row + panel, rows), column, size * BLOCK_COLUMNS)


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
    scratch, table = h[SCRATCH] + thread * h[SCRATCH_BYTES], layer_slot(h, layer, L_GATE_UP)
    for item in range(begin, end):
        unit, row = item % parts * units, item // parts * panel
        rows, count = min(panel, num_left(h, layer) - row), min(units, width // GROUP - unit)
        a = h[NUMBERS] + row * hidden
        s = h[RECORDS] + row * (hidden // GROUP) * RECORD_BYTES
        stride, end = count * 2 * BLOCK_COLUMNS * 4, 2 * (unit + count)
        following = _following(h, 2 * unit, 2 * units)
        multiply(h, layer + 1, table, 2 * unit, end, following, hidden, a, s, rows, scratch, stride)
        for r in range(rows):
            numbers = h[ACT_NUMBERS] + (row + r) * width + unit * GROUP
            records = h[ACT_RECORDS] + ((row + r) * (width // GROUP) + unit) * RECORD_BYTES
            silu_multiply_quantize(scratch + r * stride, numbers, records, count)
        if atomic_add(h[PANELS] + 8 * (item // parts), 1) == parts - 1:
            store_i64(h[PANELS] + 8 * (item // parts), 0)
            _settle_activations(h, row, rows)


@routine
def _settle_activations(h, row, num_rows):
    """All columns of these rows are quantised."""
    groups = h[INTERMEDIATE] // GROUP
    for r in range(row, row + num_rows):
        settle_row(h[ACT_RECORDS] + r * groups * RECORD_BYTES, groups)


_attend = phase(attend)


@routine
def _run_phases(h, thread, g):
    """Takes part in step `g` until it is over; phases count up in the order of the module docstring."""
    rows, outputs, hidden = h[NUM_ROWS], h[NUM_OUTPUTS], h[HIDDEN]
    row_item = MAX_ROW_ITEM if rows >= 8 * MAX_ROW_ITEM else 1
    qkv_items = _qkv_units(h) * _num_panels(rows, hidden)
    attention_items = h[NUM_ENTRIES] * h[NUM_KV_HEADS]
    blocks, width = hidden // BLOCK_COLUMNS, h[NUM_HEADS] * h[HEAD_DIM]
    if not _embed(h, 0, thread, g, 0, rows, row_item):
        return
    for layer in range(h[NUM_LAYERS]):
        p, left = 1 + layer * PHASES_PER_LAYER, num_left(h, layer)
        output_items = _num_project_items(width, left, blocks, _hidden_item(h))
        gate_up_items = _gate_up_parts(h)[1] * _num_panels(left, hidden)
        down_items = _num_project_items(h[INTERMEDIATE], left, blocks, _hidden_item(h))
        if not _norm_before_attention(h, layer, thread, g, p, rows, row_item):
            return
        if not _project_heads(h, layer, thread, g, p + 1, qkv_items, 1):
            return
        if not _attend(h, layer, thread, g, p + 2, attention_items, 1):
            return
        if not _project_attention(h, layer, thread, g, p + 3, output_items, 1):
            return
        if not _norm_before_mlp(h, layer, thread, g, p + 4, left, row_item):
            return
        if not _gate_up(h, layer, thread, g, p + 5, gate_up_items, 1):
            return
        if not _project_down(h, layer, thread, g, p + 6, down_items, 1):
            return
    p = 1 + h[NUM_LAYERS] * PHASES_PER_LAYER
    if not _norm_outputs(h, 0, thread, g, p, outputs, 1):
        return
    head_items = _num_project_items(hidden, outputs, h[VOCAB_BLOCKS], _head_item(h))
    if not _project_vocabulary(h, 0, thread, g, p + 1, head_items, 1):
        return
    if h[NUM_RECORDS]:
        draw_rows(h, 0, thread, g, p + 2, h[NUM_RECORDS], 1)


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
            while semaphore_wait(h[SEMAPHORE]) != 0:
                pass
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
