"""A long text through scheduler and runner, and a few more tokens, against an independent reference in float64.

    python -m tests.engine.long_text --context 131072

The model has one layer, blocks are handed out in random order, and the text is computed in several prompts, each of them the
beginning of the next and found in the prefix cache; the last is answered across the edge of the context. Keys are probed all
over the text: without any one block of 16 the logits of the last positions differ by 1e-4 even at 131,072 tokens.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from benchmarks.machine import describe
from engine.config import EngineConfig
from engine.outputs import SampledToken, SampleRequest
from engine.rope_scaling import RopeScaling
from engine.runners import load_runner
from engine.sampling_params import SamplingParams
from engine.stats import Counters, ModelInfo
from tests.engine.models.tiny import VOCAB_SIZE
from tests.engine.one_layer import OneLayer, make_one_layer
from tests.engine.real_runners import Bench, Call, Runner, one_torch_thread

NUM_BEYOND = 37
ORIGINAL_CONTEXT, FACTOR = 8192, 17
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": ORIGINAL_CONTEXT,
}
HEAD_DIMS = {"float32": 16, "auto": 32}
"""The least that each runner takes."""
SCALING = RopeScaling(
    rope_type="yarn", factor=FACTOR, original_max_position_embeddings=ORIGINAL_CONTEXT
)


@dataclass(frozen=True)
class Comparison:
    """Logits at every probed position; their largest differences to the reference, and of it to one without scaling."""

    logits: np.ndarray
    errors: np.ndarray
    unscaled: np.ndarray
    info: ModelInfo
    counters: Counters
    seconds: float
    cpu_seconds: float


class RecordingSampler:
    """A runner's sampler that keeps the logits of every draw."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.rows: list[np.ndarray] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def sample(self, logits: torch.Tensor, requests: Sequence[SampleRequest]) -> list[SampledToken]:
        self.rows += [row.numpy().copy() for row in logits]
        return self._sampler.sample(logits, requests)


def compare(
    folder: Path, dtype: Literal["float32", "auto"], context: int, block_size: int
) -> Comparison:
    """`context` + NUM_BEYOND tokens through the torch runner (float32) or the default one."""
    model = make_one_layer(folder, **SIZES, head_dim=HEAD_DIMS[dtype])
    runner: Any = _load(folder, dtype, context, block_size)
    runner._sampler = sampler = RecordingSampler(runner._sampler)
    bench = Bench(runner)
    bench.shuffle_blocks()
    lengths = prompt_lengths(context)
    tokens = np.random.default_rng(1).integers(0, VOCAB_SIZE, context - 1)
    started, cpu_started = time.perf_counter(), time.process_time()
    with one_torch_thread():
        for length in lengths[:-1]:
            bench.answer([_call(tokens[:length], 1)])
        (answer,) = bench.answer([_call(tokens, NUM_BEYOND + 2)])
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    text = np.concatenate([tokens, [token.token_id for token in answer]])
    positions = [n - 1 for n in lengths] + list(range(context - 1, context + NUM_BEYOND))
    expected = _reference(model, SCALING.parameters).logits(text, positions)
    unscaled = _reference(model, {"rope_type": "default"}).logits(text, positions)
    logits = np.stack(sampler.rows)
    return Comparison(
        logits,
        _distance(logits, expected),
        _distance(unscaled, expected),
        runner.info,
        bench.counters,
        seconds,
        cpu_seconds,
    )


def prompt_lengths(context: int) -> list[int]:
    """The first token alone, a sixteenth, half and one, all but one."""
    return [1, context // 16, context // 2 + 1, context - 1]


def _load(folder: Path, dtype: Literal["float32", "auto"], context: int, block_size: int) -> Runner:
    config = EngineConfig(
        model_path=folder,
        model_name="one layer",
        rope_scaling=SCALING,
        dtype=dtype,
        block_size=block_size,
        num_blocks=context // block_size + 8,
        max_num_batched_tokens=4096,
        num_speculative_tokens=0,
    )
    return load_runner(config, lambda stage, share: None)


def _call(prompt: np.ndarray, num_tokens: int) -> Call:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return Call(prompt.tolist(), params)


def _reference(model: PreTrainedModel, scaling: dict[str, Any]) -> OneLayer:
    rope = {"rope_theta": 1e4, **scaling}
    config = LlamaConfig(**SIZES, head_dim=model.config.head_dim, rope_parameters=rope)
    return OneLayer.of(model, LlamaRotaryEmbedding(config))


def _distance(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    return np.abs(ours - theirs).max(axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=131_072)
    context = parser.parse_args().context
    print(describe())
    dtypes: tuple[Literal["float32", "auto"], ...] = ("float32", "auto")
    for dtype in dtypes:
        with tempfile.TemporaryDirectory() as folder:
            result = compare(Path(folder), dtype, context, block_size=16)
        print(
            f"{context + NUM_BEYOND} tokens, {result.info.dtype}: largest difference {result.errors.max():.1e}, "
            f"{result.seconds:.0f} s ({result.cpu_seconds:.0f} s of processor time)"
        )


if __name__ == "__main__":
    main()
