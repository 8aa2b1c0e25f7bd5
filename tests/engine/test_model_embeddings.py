"""Embeddings of the two runners, through the scheduler: against transformers, and alone against in any company."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from engine.cpu_runner import CpuRunner
from engine.engine_core import EngineCore
from engine.loader.gguf import config_from_gguf
from engine.loader.gguf_file import GGUFFile
from engine.loader.tokenizer import load_tokenizer
from engine.model_runner import ModelRunner
from engine.pooling import StateSum
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from tests.engine.loader.gguf_files import read_with_transformers
from tests.engine.models.tiny import VOCAB_SIZE, make_reference
from tests.engine.tiny_runners import QUIET, config
from tests.kernels.fused_reference import needs_fused_cpu

RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(0, VOCAB_SIZE, length).tolist() for length in (1, 16, 17, 33, 47)]
TEXTS = [
    "Hello",
    "Bread is baked from flour, water, yeast and salt.",
    "def add(a, b):\n    return a + b",
    "東京は日本の首都です。",
    "The keeper of the lighthouse climbed the stairs every evening and lit the lamp. " * 4,
]


class Load:
    """Requests in a scheduler of its own over a runner; `embeddings` by request."""

    def __init__(self, runner: ModelRunner | CpuRunner, budget: int) -> None:
        limits = replace(runner.scheduler_config, max_num_batched_tokens=budget)
        self.scheduler = Scheduler(limits)
        self.core = EngineCore(self.scheduler, runner)
        self.ids = itertools.count()
        self.embeddings: dict[int, tuple[float, ...]] = {}

    def add(self, prompt: Sequence[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=1)
        self.scheduler.add_request(Request(next(self.ids), list(prompt), params, 0.0))

    def embed(self, prompt: Sequence[int]) -> int:
        request = Request(
            next(self.ids), list(prompt), SamplingParams(max_tokens=0), 0.0, StateSum()
        )
        self.scheduler.add_request(request)
        return request.request_id

    def step(self) -> None:
        for output in self.core.step():
            if output.embedding is not None:
                self.embeddings[output.request_id] = output.embedding.values

    def preempt(self, choice: int) -> None:
        """Push somebody out, if anybody runs."""
        running = self.scheduler._roster.running
        if running:
            self.scheduler._planner.preempt(running[choice % len(running)])

    def run(self) -> None:
        while self.core.has_work:
            self.step()


def embed_all(
    runner: ModelRunner | CpuRunner, prompts: Sequence[Sequence[int]], budget: int = 64
) -> np.ndarray:
    """Embeddings [prompts, hidden_size], all in one batch."""
    load = Load(runner, budget)
    ids = [load.embed(prompt) for prompt in prompts]
    load.run()
    return np.array([load.embeddings[i] for i in ids])


def reference_embeddings(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> np.ndarray:
    """transformers' last hidden states of the padded batch, their masked mean, normalised."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
    mask = torch.tensor([[1] * len(p) + [0] * (longest - len(p)) for p in prompts])
    with torch.inference_mode():
        states = model.get_decoder()(ids, attention_mask=mask).last_hidden_state
    mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(mean, dim=1).numpy()


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_float32_equals_transformers(model_type: str, tmp_path: Path) -> None:
    reference = make_reference(model_type)
    reference.save_pretrained(tmp_path)
    runner = ModelRunner.load(config(tmp_path, dtype="float32"), **QUIET)
    expected = reference_embeddings(reference, PROMPTS)
    assert np.abs(embed_all(runner, PROMPTS) - expected).max() < 1e-5


@pytest.mark.parametrize("budget", [1, 7, 16, 64])
def test_float32_alone_and_in_chunks_beside_others(
    exact: ModelRunner, reference: PreTrainedModel, budget: int
) -> None:
    expected = reference_embeddings(reference, PROMPTS)
    assert np.abs(embed_all(exact, PROMPTS, budget) - expected).max() < 1e-5
    alone = np.concatenate([embed_all(exact, [prompt]) for prompt in PROMPTS])
    assert np.abs(alone - expected).max() < 1e-5


def test_answers_beside_embeddings_stay_the_same(exact: ModelRunner) -> None:
    def text(with_embeddings: bool) -> list[int]:
        load = Load(exact, 16)
        load.add(PROMPTS[2], max_tokens=10)
        request = load.scheduler._roster.requests[0]
        for prompt in PROMPTS if with_embeddings else ():
            load.embed(prompt)
        load.run()
        return request.sequences[0].output_token_ids

    assert len(text(True)) == 10
    assert text(True) == text(False)


@needs_fused_cpu
def test_the_fused_runner_is_close(fused: CpuRunner, reference: PreTrainedModel) -> None:
    ours, expected = embed_all(fused, PROMPTS), reference_embeddings(reference, PROMPTS)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1.0, rtol=1e-12)
    assert (ours * expected).sum(1).min() > 0.995


@needs_fused_cpu
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_nothing_but_the_prompt_changes_a_bit_of_the_fused_runners(fused: CpuRunner, data) -> None:
    alone = [embed_all(fused, [prompt])[0].tobytes() for prompt in PROMPTS]
    load = Load(fused, data.draw(st.integers(1, 64), label="budget"))
    ids: dict[int, int] = {}
    for index in data.draw(st.permutations(range(len(PROMPTS)))):
        if data.draw(st.booleans()):
            load.add(PROMPTS[index], max_tokens=data.draw(st.integers(1, 6)))
        ids[load.embed(PROMPTS[index])] = index
        for choice in data.draw(st.lists(st.none() | st.integers(0, 7), max_size=4)):
            load.step() if choice is None else load.preempt(choice)
    load.run()
    assert set(load.embeddings) == set(ids)
    for request_id, values in load.embeddings.items():
        assert np.array(values).tobytes() == alone[ids[request_id]]


@pytest.mark.model
def test_the_builtin_model_equals_transformers_in_float32(builtin_model_path: Path) -> None:
    tokenizer = load_tokenizer(builtin_model_path)
    prompts = [list(tokenizer.encode(text)) for text in TEXTS]
    fields = config_from_gguf(GGUFFile(builtin_model_path))
    expected = reference_embeddings(read_with_transformers(builtin_model_path, fields), prompts)
    options = config(builtin_model_path, dtype="float32", max_model_len=256, num_blocks=64)
    runner = ModelRunner.load(options, **QUIET)
    assert np.abs(embed_all(runner, prompts) - expected).max() < 1e-4
    assert np.abs(embed_all(runner, prompts, budget=13) - expected).max() < 1e-4


@needs_fused_cpu
@pytest.mark.model
def test_the_builtin_model_on_the_fused_runner(builtin_model_path: Path) -> None:
    """What 8-bit activations cost is stated, not hidden: docs/performance.md has the figures of more texts."""
    tokenizer = load_tokenizer(builtin_model_path)
    prompts = [list(tokenizer.encode(text)) for text in TEXTS]
    options = config(builtin_model_path, max_model_len=256, num_blocks=64)
    exact = embed_all(ModelRunner.load(replace(options, dtype="float32"), **QUIET), prompts)
    runner = CpuRunner.load(options, **QUIET)
    ours, in_chunks = embed_all(runner, prompts), embed_all(runner, prompts[::-1], budget=13)[::-1]
    runner.close()
    np.testing.assert_array_equal(ours, in_chunks)
    assert (ours * exact).sum(1).min() > 0.998
