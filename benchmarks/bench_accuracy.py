"""How near are the logits of the fused CPU runner to those of transformers in float32, and what would others give?

    python -m benchmarks.bench_accuracy [--model PATH]

1,000 teacher-forced positions: 250 tokens each of four files of this project (prose, code, a licence, tables). Beside the fused
runner with bfloat16 and with 8-bit keys and values stand transformers in bfloat16, and transformers in float32 with the inputs of
all linear layers rounded to 8 bits in groups of 32, as llama.cpp rounds them. All read the same GGUF file. Takes a few
minutes. The last line is JSON.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.machine import describe
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner, build_step_input
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.loader.gguf import config_from_gguf
from engine.loader.gguf_file import GGUFFile
from engine.loader.model import open_model
from engine.loader.tokenizer import load_tokenizer
from engine.outputs import ScheduledSequence

ROOT = Path(__file__).resolve().parents[1]
FILES = ("ARCHITECTURE.md", "engine/scheduler.py", "LICENSE", "docs/api.md")
NUM_TOKENS, NUM_CHARACTERS = 250, 4000
LOW_COSINE = 0.98
Logits = Callable[[list[int]], torch.Tensor]


def read_texts(path: Path) -> list[list[int]]:
    """Token ids [NUM_TOKENS] of every file."""
    tokenizer = load_tokenizer(path)
    texts = (ROOT.joinpath(name).read_text(encoding="utf-8")[:NUM_CHARACTERS] for name in FILES)
    return [list(tokenizer.encode(text))[:NUM_TOKENS] for text in texts]


def load_transformers(path: Path) -> PreTrainedModel:
    """transformers' own model in float32 with the file's weights."""
    config = AutoConfig.for_model(**config_from_gguf(GGUFFile(path)))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = open_model(path).tensors
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            tensor.copy_(tensors.dense(name).float())
    return model


def logits_of(model: PreTrainedModel) -> Logits:
    """Logits [tokens, vocab] float32 at every position."""

    @torch.inference_mode()
    def compute(tokens: list[int]) -> torch.Tensor:
        return model(torch.tensor([tokens])).logits[0].float()

    return compute


def round_to_8_bits(x: torch.Tensor) -> torch.Tensor:
    """The nearest of 255 steps up to the largest magnitude of every group of 32."""
    groups = x.unflatten(-1, (-1, 32))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((groups / scale).round() * scale).flatten(-2)


@contextmanager
def inputs_rounded(model: PreTrainedModel) -> Iterator[None]:
    """All linear layers get rounded inputs."""
    hooks = [
        module.register_forward_pre_hook(lambda _, inputs: (round_to_8_bits(inputs[0]),))
        for module in model.modules()
        if isinstance(module, nn.Linear)
    ]
    yield
    for hook in hooks:
        hook.remove()


@contextmanager
def fused(path: Path, **options: Any) -> Iterator[Logits]:
    """The fused runner, a text in one step."""
    config = EngineConfig(
        model_path=path, model_name=path.name, num_blocks=32, max_model_len=512,
        max_num_seqs=256, max_num_batched_tokens=256, **options,
    )  # fmt: skip
    runner = CpuRunner.load(config, lambda stage, share: None)

    def compute(tokens: list[int]) -> torch.Tensor:
        run = ScheduledSequence(0, tokens, 0, range(len(tokens) // 16 + 1), ())
        rows = np.arange(len(tokens), dtype=np.int32)
        step = replace(build_step_input([run]), output_rows=rows)
        return torch.from_numpy(runner._model.run(step).copy())

    yield compute
    runner.close()


def compare(logits: Logits, exact: list[torch.Tensor], texts: list[list[int]]) -> dict[str, float]:
    """Agreement over all positions; Kullback-Leibler divergence of the distribution from the exact one, in nats."""
    cosines, same, divergences = [], [], []
    for tokens, expected in zip(texts, exact, strict=True):
        ours = logits(tokens)
        cosines.append(torch.cosine_similarity(ours, expected))
        same.append(ours.argmax(-1) == expected.argmax(-1))
        log_p, log_q = expected.log_softmax(-1), ours.log_softmax(-1)
        divergences.append((log_p.exp() * (log_p - log_q)).sum(-1))
    cosine = torch.cat(cosines)
    return {
        "argmax agrees": torch.cat(same).float().mean().item(),
        "cosine mean": cosine.mean().item(),
        "cosine min": cosine.min().item(),
        f"below {LOW_COSINE}": (cosine < LOW_COSINE).sum().item(),
        "KL mean": torch.cat(divergences).mean().item(),
        "KL max": torch.cat(divergences).max().item(),
    }


def measure(path: Path) -> dict[str, dict[str, float]]:
    """Every way's figures, printed as they come."""
    texts, results = read_texts(path), {}
    model = load_transformers(path)
    exact = [logits_of(model)(tokens) for tokens in texts]

    def report(name: str, logits: Logits) -> None:
        results[name] = compare(logits, exact, texts)
        figures = ", ".join(f"{key} {value:.5f}" for key, value in results[name].items())
        print(f"{name:36} {figures}", flush=True)

    with fused(path) as logits:
        report("fused", logits)
    with fused(path, kv_cache_dtype="int8") as logits:
        report("fused, --kv-cache-dtype int8", logits)
    with inputs_rounded(model):
        report("float32, inputs rounded to 8 bits", logits_of(model))
    report("transformers, bfloat16", logits_of(model.bfloat16()))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    data_dir = os.environ.get("PAGETURN_DATA_DIR") or platformdirs.user_data_dir("pageturn")
    path = options.model or resolve_model(SMOLLM2_135M.name, Path(data_dir)).path
    print(f"{describe()}, {path.name}, {len(FILES) * NUM_TOKENS} positions")
    results = measure(path)
    print(json.dumps({"machine": describe(), "model": path.name, "accuracy": results}))


if __name__ == "__main__":
    main()
