"""Where the tokens of one step stand: built once per step, read by every attention layer through a scoped context.

Numbers are gathered in numpy and become tensors once, so a step costs a few array operations per sequence and none
per token in Python.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch

from engine.outputs import ScheduledSequence


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One batch of token runs, in the order of their sequences.

    slot_mapping [num_tokens] int64, block_tables [num_seqs, max_blocks] int32 (unused entries are 0), seq_lens
    [num_seqs] int32 (keys visible after this step), query_start_loc [num_seqs + 1] int32.
    """

    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    max_query_len: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a forward pass reads: input_ids and positions [num_tokens] int64, and where their KV lies."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    metadata: AttentionMetadata


_metadata: ContextVar[AttentionMetadata] = ContextVar("attention_metadata")


@contextmanager
def forward_context(metadata: AttentionMetadata) -> Iterator[None]:
    """Make `metadata` the one that attention layers read inside the block."""
    token = _metadata.set(metadata)
    try:
        yield
    finally:
        _metadata.reset(token)


def current_metadata() -> AttentionMetadata:
    """The metadata of the forward pass that is running."""
    return _metadata.get()


def build_step_inputs(
    scheduled: Sequence[ScheduledSequence], block_size: int, device: torch.device
) -> StepInputs:
    """Inputs of a batch; `scheduled` is not empty and every run has a token."""
    query_lens = np.array([len(sequence.token_ids) for sequence in scheduled])
    starts = np.array([sequence.start_position for sequence in scheduled])
    query_start_loc = np.concatenate(([0], query_lens.cumsum()))
    input_ids = np.concatenate([np.asarray(s.token_ids, dtype=np.int64) for s in scheduled])
    # Position of token i of its run is i + start; `row` names the run of every token.
    row = np.repeat(np.arange(len(scheduled)), query_lens)
    positions = np.arange(len(input_ids)) + np.repeat(starts - query_start_loc[:-1], query_lens)
    block_tables = _pad([sequence.block_table for sequence in scheduled])
    block_ids = block_tables[row, positions // block_size].astype(np.int64)
    metadata = AttentionMetadata(
        slot_mapping=_tensor(block_ids * block_size + positions % block_size, np.int64, device),
        block_tables=_tensor(block_tables, np.int32, device),
        seq_lens=_tensor(starts + query_lens, np.int32, device),
        query_start_loc=_tensor(query_start_loc, np.int32, device),
        max_query_len=int(query_lens.max()),
    )
    return StepInputs(
        _tensor(input_ids, np.int64, device), _tensor(positions, np.int64, device), metadata
    )


def _pad(block_tables: Sequence[Sequence[int]]) -> np.ndarray:
    padded = np.zeros((len(block_tables), max(map(len, block_tables))), dtype=np.int32)
    for row, table in zip(padded, block_tables, strict=True):
        row[: len(table)] = table
    return padded


def _tensor(values: np.ndarray, kind: type, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values.astype(kind, copy=False))
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
