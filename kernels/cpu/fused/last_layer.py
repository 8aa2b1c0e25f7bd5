"""Which rows go through the last layer to its end: those whose logits or final states are wanted.

Every row gives the last layer a key and a value. What follows (its query, attention, MLP) changes nothing but its own final
state, which nobody reads of most rows of a prompt. Behind the last layer's attention the rows that are left stand one after
another, in the order of FINAL_ROWS; in all other layers every row is left, at its own place.
"""

from kernels.cpu.fused.layout import (
    FINAL_ROWS,
    NUM_FINAL_ROWS,
    NUM_LAYERS,
    NUM_ROWS,
    ROW_TARGETS,
)
from kernels.cpu.ir_tools import formula, routine
from kernels.cpu.memory import load_i32, store_i32

NOT_LEFT = -1


@formula
def _is_last(h, layer):
    return layer == h[NUM_LAYERS] - 1


@formula
def num_left(h, layer):
    """How many rows go on behind the attention of a layer."""
    return h[NUM_FINAL_ROWS] if _is_last(h, layer) else h[NUM_ROWS]


@formula
def row_left(h, layer, index):
    """Which row of the step row `index` of those that are left is."""
    return load_i32(h[FINAL_ROWS] + 4 * index) if _is_last(h, layer) else index


@formula
def target_of(h, layer, row):
    """A row's place among those that are left, or NOT_LEFT."""
    return load_i32(h[ROW_TARGETS] + 4 * row) if _is_last(h, layer) else row


@routine
def is_any_left(h, layer, row, num_rows):
    """Whether one of `num_rows` rows from `row` on goes on behind a layer's attention."""
    found = False
    for index in range(row, row + num_rows):
        found |= target_of(h, layer, index) != NOT_LEFT
    return found


@routine
def set_targets(h):
    """Finds every row's place, for a step."""
    for row in range(h[NUM_ROWS]):
        store_i32(h[ROW_TARGETS] + 4 * row, NOT_LEFT)
    for index in range(h[NUM_FINAL_ROWS]):
        store_i32(h[ROW_TARGETS] + 4 * load_i32(h[FINAL_ROWS] + 4 * index), index)
