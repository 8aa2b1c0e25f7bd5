"""Decode steps as CUDA graphs: a forward pass with one token per sequence is recorded once per batch size and replayed.

A replay costs one launch instead of some hundreds. It reads the tensors that it was recorded with, so each size keeps a pack
of inputs on the device that a step overwrites in one copy. Sizes are a ladder; a batch is padded to the next rung with rows
that see no key (`seq_len` 0) and are not stored (slot -1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from engine.attention_metadata import StepArrays, StepInputs, inputs_from
from engine.transfer import pack, pin, unpack

LARGEST_BATCH = 512
Forward = Callable[[StepInputs], torch.Tensor]  # final states [num_tokens, hidden_size]


class Recorder(Protocol):
    """Records device work: runs it, and returns its result and a function that does it again into the same tensor."""

    def __call__(
        self, work: Callable[[], torch.Tensor], /
    ) -> tuple[torch.Tensor, Callable[[], None]]: ...


@dataclass(frozen=True)
class Rung:
    """One recorded batch size."""

    packed_inputs: torch.Tensor
    states: torch.Tensor
    replay: Callable[[], None]


class DecodeGraphs:
    """Recorded decode steps for batches of up to `max_num_seqs` sequences of up to `max_blocks` blocks."""

    def __init__(
        self, forward: Forward, record: Recorder, max_num_seqs: int, max_blocks: int
    ) -> None:
        self._forward, self._record, self._max_blocks = forward, record, max_blocks
        self._sizes = ladder(max_num_seqs)
        self._rungs: dict[int, Rung] = {}

    def capture(self, device: torch.device) -> None:
        """Record every size, the largest first: the smaller ones then fit into its memory."""
        for size in reversed(self._sizes):
            self._rungs[size] = self._capture(size, device)

    def can_run(self, step: StepArrays) -> bool:
        """Whether the step is a decode of a size that was recorded."""
        return step.max_query_len == 1 and step.num_seqs <= self._sizes[-1]

    def run(self, step: StepArrays) -> torch.Tensor:
        """Final states [num_seqs, hidden_size]; they live until the next step."""
        rung = self._rungs[next(size for size in self._sizes if size >= step.num_seqs)]
        padded = pad(step, len(rung.states), self._max_blocks)
        rung.packed_inputs.copy_(_staged(padded, rung.packed_inputs.device), non_blocking=True)
        rung.replay()
        return rung.states[: step.num_seqs]

    def _capture(self, size: int, device: torch.device) -> Rung:
        idle = pad(NO_SEQUENCES, size, self._max_blocks)
        packed_inputs = torch.from_numpy(pack(idle.arrays())).to(device)
        inputs = inputs_from(unpack(packed_inputs, idle.arrays()), max_query_len=1)
        states, replay = self._record(lambda: self._forward(inputs))
        return Rung(packed_inputs, states, replay)


class CudaRecorder:
    """Records into CUDA graphs that share one pool of memory, as only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(
        self, work: Callable[[], torch.Tensor], /
    ) -> tuple[torch.Tensor, Callable[[], None]]:
        work()  # compiles kernels and sets up libraries, which cannot be recorded
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = work()
        return result, graph.replay


NO_SEQUENCES = StepArrays(
    input_ids=np.zeros(0, dtype=np.int64),
    positions=np.zeros(0, dtype=np.int64),
    slot_mapping=np.zeros(0, dtype=np.int64),
    block_tables=np.zeros((0, 0), dtype=np.int32),
    seq_lens=np.zeros(0, dtype=np.int32),
    query_start_loc=np.zeros(1, dtype=np.int32),
)


def ladder(max_num_seqs: int) -> list[int]:
    """1, 2, 4, ... and the largest batch itself: decode reads weights and keys, so idle rows cost next to nothing."""
    largest = min(max_num_seqs, LARGEST_BATCH)
    return [*(2**i for i in range((largest - 1).bit_length())), largest]


def pad(step: StepArrays, size: int, max_blocks: int) -> StepArrays:
    """The step with idle sequences up to `size`, in block tables of the width that was recorded."""
    missing = size - step.num_seqs
    width = max_blocks - step.block_tables.shape[1]
    return StepArrays(
        np.pad(step.input_ids, (0, missing)),
        np.pad(step.positions, (0, missing)),
        np.pad(step.slot_mapping, (0, missing), constant_values=-1),
        np.pad(step.block_tables, ((0, missing), (0, width))),
        np.pad(step.seq_lens, (0, missing)),
        np.arange(size + 1, dtype=np.int32),
    )


def _staged(step: StepArrays, device: torch.device) -> torch.Tensor:
    packed = pack(step.arrays())
    return torch.from_numpy(packed) if device.type == "cpu" else pin(packed)
