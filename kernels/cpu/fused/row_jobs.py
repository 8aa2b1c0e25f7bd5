"""Draws from rows of logits and ranks in them, a record of a list an item each: behind a step's logits, or as a job of their own."""

from kernels.cpu.fused.layout import (
    DRAWS,
    JOB,
    MAXIMA,
    NUM_RECORDS,
    ROW_COLUMNS,
    ROW_LOGITS,
    ROW_RECORDS,
    ROW_STRIDE,
    SAMPLING_BYTES,
    SAMPLING_SCRATCH,
    STEP,
)
from kernels.cpu.fused.ranking import RANK_BYTES, rank_token
from kernels.cpu.fused.sampling import DRAW_BYTES, draw_token
from kernels.cpu.fused.sampling_kernels import TILE, tile_maxima
from kernels.cpu.fused.threads import phase
from kernels.cpu.ir_tools import formula, routine
from kernels.cpu.memory import load_i64


@formula
def _maxima_of(h, row):
    return h[MAXIMA] + row * ((h[ROW_COLUMNS] + TILE - 1) // TILE) * 4


@routine
def find_maxima(h, first, end, column, num_columns):
    """Maxima of the tiles from `column` on, the first one of a tile, in rows `first` to `end` of the step's logits."""
    count = min(num_columns, h[ROW_COLUMNS] - column)
    for row in range(first, end):
        logits = h[ROW_LOGITS] + row * h[ROW_STRIDE] + column * 4
        maxima = _maxima_of(h, row) + column // TILE * 4
        tile_maxima(logits, count, (count + TILE - 1) // TILE, maxima)


@phase
@routine
def draw_rows(h, layer, thread, begin, end):
    scratch = h[SAMPLING_SCRATCH] + thread * h[SAMPLING_BYTES]
    for index in range(begin, end):
        record = h[ROW_RECORDS] + index * DRAW_BYTES
        row = load_i64(record)
        logits = h[ROW_LOGITS] + row * h[ROW_STRIDE]
        maxima = _maxima_of(h, row) if h[JOB] == STEP else 0
        draw_token(logits, h[ROW_COLUMNS], record, maxima, scratch)


@phase
@routine
def _rank_rows(h, layer, thread, begin, end):
    scratch = h[SAMPLING_SCRATCH] + thread * h[SAMPLING_BYTES]
    for index in range(begin, end):
        record = h[ROW_RECORDS] + index * RANK_BYTES
        row = h[ROW_LOGITS] + load_i64(record) * h[ROW_STRIDE]
        rank_token(row, h[ROW_COLUMNS], record, scratch)


@routine
def run_records(h, thread, g):
    """Takes part in generation `g`, a job of rows instead of a step: one phase, a record an item."""
    count = h[NUM_RECORDS]
    if h[JOB] == DRAWS:
        draw_rows(h, 0, thread, g, 0, count, 1)
    else:
        _rank_rows(h, 0, thread, g, 0, count, 1)
