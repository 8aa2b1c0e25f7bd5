"""Where the tokens of one step stand: built once per step, read by every attention layer through a scoped context.

Numbers are gathered in numpy (`StepArrays`) and reach the device in one copy (`StepInputs`), so a step costs a few array
operations per sequence and none per token in Python.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.outputs import ScheduledSequence
from engine.transfer import to_device


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


@dataclass(frozen=True, slots=True)
class StepArrays:
    """The same on the host. int64: input_ids, positions, slot_mapping; int32: block_tables, seq_lens, query_start_loc."""

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slot_mapping: NDArray[np.int64]
    block_tables: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    query_start_loc: NDArray[np.int32]

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)

    @property
    def max_query_len(self) -> int:
        return int(np.diff(self.query_start_loc).max())

    def arrays(self) -> tuple[np.ndarray, ...]:
        """All of them, in the order that `inputs_from` takes."""
        return (
            self.input_ids,
            self.positions,
            self.slot_mapping,
            self.block_tables,
            self.seq_lens,
            self.query_start_loc,
        )

    def to(self, device: torch.device) -> StepInputs:
        """On the device, or soon: the copy may still be under way."""
        return inputs_from(to_device(self.arrays(), device), self.max_query_len)


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


def inputs_from(tensors: Sequence[torch.Tensor], max_query_len: int) -> StepInputs:
    """Inputs of the tensors that `StepArrays.arrays` became."""
    input_ids, positions, slot_mapping, block_tables, seq_lens, query_start_loc = tensors
    metadata = AttentionMetadata(
        slot_mapping, block_tables, seq_lens, query_start_loc, max_query_len
    )
    return StepInputs(input_ids, positions, metadata)


def gather_step(scheduled: Sequence[ScheduledSequence], block_size: int) -> StepArrays:
    """A batch in arrays; `scheduled` is not empty and every run has a token."""
    query_lens = np.array([len(sequence.token_ids) for sequence in scheduled])
    starts = np.array([sequence.start_position for sequence in scheduled])
    query_start_loc = np.concatenate(([0], query_lens.cumsum()))
    input_ids = np.concatenate([np.asarray(s.token_ids, dtype=np.int64) for s in scheduled])
    # Position of token i of its run is i + start; `row` names the run of every token.
    row = np.repeat(np.arange(len(scheduled)), query_lens)
    positions = np.arange(len(input_ids)) + np.repeat(starts - query_start_loc[:-1], query_lens)
    block_tables = _pad([sequence.block_table for sequence in scheduled])
    block_ids = block_tables[row, positions // block_size].astype(np.int64)
    return StepArrays(
        input_ids,
        positions,
        block_ids * block_size + positions % block_size,
        block_tables,
        (starts + query_lens).astype(np.int32),
        query_start_loc.astype(np.int32),
    )


def build_step_inputs(
    scheduled: Sequence[ScheduledSequence], block_size: int, device: torch.device
) -> StepInputs:
    """Inputs of a batch, on the device."""
    return gather_step(scheduled, block_size).to(device)


def _pad(block_tables: Sequence[Sequence[int]]) -> np.ndarray:
    padded = np.zeros((len(block_tables), max(map(len, block_tables))), dtype=np.int32)
    for row, table in zip(padded, block_tables, strict=True):
        row[: len(table)] = table
    return padded
