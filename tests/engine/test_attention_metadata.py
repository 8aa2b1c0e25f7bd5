"""Step inputs: exact positions, slots and tables of a mixed batch."""

import numpy as np
import pytest
import torch

from engine.attention_metadata import build_step_inputs, current_metadata, forward_context
from engine.outputs import ScheduledSequence

CPU = torch.device("cpu")


def test_a_mixed_batch_of_chunk_decode_and_first_token() -> None:
    inputs = build_step_inputs(
        [
            ScheduledSequence(1, [10, 11, 12], 2, [7, 3], ()),  # a chunk over a block's end
            ScheduledSequence(2, (20,), 8, [5, 0, 9], ()),  # a decode at a block's first slot
            ScheduledSequence(3, [30], 0, [4], ()),
        ],
        4,
        CPU,
    )
    step = inputs.metadata
    assert inputs.input_ids.tolist() == [10, 11, 12, 20, 30]
    assert inputs.positions.tolist() == [2, 3, 4, 8, 0]
    assert step.slot_mapping.tolist() == [7 * 4 + 2, 7 * 4 + 3, 3 * 4, 9 * 4, 4 * 4]
    assert step.block_tables.tolist() == [[7, 3, 0], [5, 0, 9], [4, 0, 0]]
    assert step.seq_lens.tolist() == [5, 9, 1]
    assert step.query_start_loc.tolist() == [0, 3, 4, 5]
    assert step.max_query_len == 3
    assert inputs.input_ids.dtype == inputs.positions.dtype == torch.int64
    assert step.slot_mapping.dtype == torch.int64
    assert step.block_tables.dtype == step.seq_lens.dtype == torch.int32
    assert step.query_start_loc.dtype == torch.int32


def test_slots_of_high_blocks_do_not_overflow() -> None:
    block_id = 2**31 - 1
    inputs = build_step_inputs([ScheduledSequence(1, [0], 0, [block_id], ())], 1024, CPU)
    assert inputs.metadata.slot_mapping.tolist() == [block_id * 1024]


def test_random_batches_equal_a_token_by_token_count() -> None:
    rng = np.random.default_rng(0)
    for block_size in (1, 3, 16):
        runs = []
        for i in range(20):
            start, length = int(rng.integers(0, 60)), int(rng.integers(1, 40))
            table = rng.permutation(100)[: -(-(start + length) // block_size)].tolist()
            runs.append(ScheduledSequence(i, list(range(length)), start, table, ()))
        expected = [
            run.block_table[p // block_size] * block_size + p % block_size
            for run in runs
            for p in range(run.start_position, run.start_position + len(run.token_ids))
        ]
        assert build_step_inputs(runs, block_size, CPU).metadata.slot_mapping.tolist() == expected


def test_the_context_holds_only_inside_its_block() -> None:
    outer, inner = (
        build_step_inputs([ScheduledSequence(1, [0], start, [0], ())], 16, CPU).metadata
        for start in (0, 1)
    )
    with forward_context(outer):
        with forward_context(inner):
            assert current_metadata() is inner
        assert current_metadata() is outer
    with pytest.raises(LookupError):
        current_metadata()
