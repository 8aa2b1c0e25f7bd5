"""Jobs of the threads that are no steps: every record of a list, an item each, about a row of logits (sampling.py)."""

from kernels.cpu.fused.layout import (
    DRAWS,
    JOB,
    NUM_RECORDS,
    ROW_COLUMNS,
    ROW_LOGITS,
    ROW_RECORDS,
    ROW_STRIDE,
    SAMPLING_BYTES,
    SAMPLING_SCRATCH,
)
from kernels.cpu.fused.sampling import DRAW_BYTES, RANK_BYTES, draw_token, rank_token
from kernels.cpu.fused.threads import phase
from kernels.cpu.ir_tools import routine
from kernels.cpu.memory import load_i64


@phase
@routine
def _draw_rows(h, layer, thread, begin, end):
    scratch = h[SAMPLING_SCRATCH] + thread * h[SAMPLING_BYTES]
    for index in range(begin, end):
        record = h[ROW_RECORDS] + index * DRAW_BYTES
        row = h[ROW_LOGITS] + load_i64(record) * h[ROW_STRIDE]
        draw_token(row, h[ROW_COLUMNS], record, scratch)


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
        _draw_rows(h, 0, thread, g, 0, count, 1)
    else:
        _rank_rows(h, 0, thread, g, 0, count, 1)
