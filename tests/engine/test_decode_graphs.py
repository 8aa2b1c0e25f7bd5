"""Recorded decode steps, with a recorder that runs the work again: padding, sizes, and the tokens of unrecorded steps."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.attention_metadata import StepInputs, gather_step
from engine.config import EngineConfig
from engine.decode_graphs import LARGEST_BATCH, DecodeGraphs, ladder, pad
from engine.model_runner import ModelRunner
from engine.outputs import SampleRequest, ScheduledSequence, SchedulerOutput
from engine.sampling_params import SamplingParams
from tests.engine.models.tiny import make_reference

CPU = torch.device("cpu")


class FakeRecorder:
    """As a CUDA graph does: a replay runs the work on the tensors it was recorded with, into the tensor it gave."""

    def __init__(self) -> None:
        self.num_recorded = self.num_replays = 0

    def __call__(
        self, work: Callable[[], torch.Tensor], /
    ) -> tuple[torch.Tensor, Callable[[], None]]:
        result = work()
        self.num_recorded += 1

        def replay() -> None:
            self.num_replays += 1
            result.copy_(work())

        return result, replay


def decodes(*positions: int) -> list[ScheduledSequence]:
    return [
        ScheduledSequence(i, [i + 5], position, [i, 9, 8][: position // 4 + 1], ())
        for i, position in enumerate(positions)
    ]


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])],
)
def test_sizes_are_a_ladder_up_to_the_largest_batch(max_num_seqs: int, sizes: list[int]) -> None:
    assert ladder(max_num_seqs) == sizes
    assert ladder(10_000)[-1] == LARGEST_BATCH


def test_padding_adds_sequences_that_see_and_store_nothing() -> None:
    step = pad(gather_step(decodes(2, 7), 4), 4, 5)
    assert step.input_ids.tolist() == [5, 6, 0, 0]
    assert step.positions.tolist() == [2, 7, 0, 0]
    assert step.slot_mapping.tolist() == [2, 9 * 4 + 3, -1, -1]
    assert step.seq_lens.tolist() == [3, 8, 0, 0]
    assert step.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert step.block_tables.tolist() == [[0, 0, 0, 0, 0], [1, 9, 0, 0, 0], [0] * 5, [0] * 5]
    assert [array.dtype for array in step.arrays()] == [np.int64] * 3 + [np.int32] * 3


def test_a_replay_sees_this_steps_inputs_and_no_others() -> None:
    seen: list[list[int]] = []

    def forward(inputs: StepInputs) -> torch.Tensor:
        where = inputs.metadata
        seen.append(where.seq_lens.tolist())
        assert where.max_query_len == 1
        return (inputs.input_ids + where.block_tables[:, 0])[:, None].float()

    recorder = FakeRecorder()
    graphs = DecodeGraphs(forward, recorder, max_num_seqs=4, max_blocks=5)
    graphs.capture(CPU)
    assert recorder.num_recorded == 3
    seen.clear()
    assert graphs.run(gather_step(decodes(2, 7, 0), 4)).tolist() == [[5], [7], [9]]
    assert graphs.run(gather_step(decodes(3), 4)).tolist() == [[5]]
    assert seen == [[3, 8, 1, 0], [4]]


def test_chunks_and_larger_batches_are_not_replayed() -> None:
    graphs = DecodeGraphs(lambda inputs: torch.empty(0), FakeRecorder(), 2, max_blocks=5)
    assert graphs.can_run(gather_step(decodes(1, 2), 4))
    assert not graphs.can_run(gather_step(decodes(1, 2, 3), 4))
    assert not graphs.can_run(gather_step([ScheduledSequence(0, [1, 2], 0, [0], ())], 4))


def test_recorded_decodes_give_the_tokens_of_unrecorded_ones(tmp_path: Path) -> None:
    make_reference("llama", eos_token_id=9).save_pretrained(tmp_path)
    config = EngineConfig(
        model_path=tmp_path,
        model_name="tiny",
        num_blocks=20,
        block_size=4,
        dtype="float32",
        max_num_seqs=4,
        attention_backend="reference",
    )
    runner, recorder = ModelRunner.load(config, lambda stage, share: None), FakeRecorder()
    expected = generate(runner)
    runner.record_decodes(recorder)
    assert generate(runner) == expected
    assert recorder.num_replays == 8


def generate(runner: ModelRunner) -> list[list[int]]:
    """Three prompts of different lengths, greedily, eight decode steps together."""
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2]]
    tables = [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9, 10, 11]]
    texts = [list(prompt) for prompt in prompts]
    for first in (True, *[False] * 8):
        runs = [
            ScheduledSequence(
                i,
                text if first else text[-1:],
                0 if first else len(text) - 1,
                table[: -(-len(text) // 4)],
                (SampleRequest(i, SamplingParams(temperature=0.0), None, text, ()),),
            )
            for i, (text, table) in enumerate(zip(texts, tables, strict=True))
        ]
        num_tokens = sum(len(run.token_ids) for run in runs)
        samples = runner.execute(SchedulerOutput(tuple(runs), (), num_tokens)).samples
        for i, text in enumerate(texts):
            text.append(samples[i].token_id)
    return texts
