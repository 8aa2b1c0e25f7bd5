"""What a unit of projected heads becomes: queries for the attention, keys and values in the pool.

A unit is 1 or 2 heads of queries, keys or values, whose columns fill whole weight blocks. Bias first, then the head's norm,
the rotation, and the store in the pool's format (attention.py, attention_int8.py).
"""

import numba

from kernels.cpu.fused.attention_kernels import SCRATCH_TAIL
from kernels.cpu.fused.layout import (
    COSINES,
    EPSILON,
    HEAD_DIM,
    HEAD_TILE_BYTES,
    HEADS_PER_UNIT,
    KV,
    KV_IS_INT8,
    L_K_NORM,
    L_Q_NORM,
    L_QKV_BIAS,
    LAYER_SLOTS,
    LAYERS,
    MAX_ROWS,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_TILES,
    QUERIES,
    QUERY_FACTORS,
    ROW_CLEARS,
    ROW_POSITIONS,
    ROW_SLOTS,
    SCRATCH,
    SCRATCH_BYTES,
    SINES,
    SOFTMAX_SCALE,
    TILE_TOKENS,
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
from kernels.cpu.ir_tools import formula, routine
from kernels.cpu.memory import float_from_bits, load_i32, load_i64


@formula
def layer_slot(h, layer, slot):
    return load_i64(h[LAYERS] + (layer * LAYER_SLOTS + slot) * 8)


@formula
def num_units(h, num_heads):
    return (num_heads + h[HEADS_PER_UNIT] - 1) // h[HEADS_PER_UNIT]


@routine
def finish_unit(h, layer, thread, unit, row, values):
    """Bias, then what queries, keys and values need each."""
    bias, columns = layer_slot(h, layer, L_QKV_BIAS), h[HEADS_PER_UNIT] * h[HEAD_DIM]
    if bias:
        add_bias(values, bias + unit * columns * 4, columns // 16)
    q_units, kv_units = num_units(h, h[NUM_HEADS]), num_units(h, h[NUM_KV_HEADS])
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
    _norm_head_if_any(h, layer_slot(h, layer, L_Q_NORM), values)
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
    _norm_head_if_any(h, layer_slot(h, layer, L_K_NORM), values)
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
