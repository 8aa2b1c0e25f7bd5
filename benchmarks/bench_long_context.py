"""What do 131,072 tokens cost beside the model's arithmetic, and what is a stretched model worth?

    python -m benchmarks.bench_long_context [--model PATH]

The tables of rotary embedding for every kind of scaling; the scheduler's work on one prompt of 131,072 tokens (a model that
costs nothing); and the perplexity of the model on 16,384 tokens of this project's own documents and code, by stretch of
position, without scaling and with three kinds of scaling by 2. The built-in model must have been fetched before, or another be
named. The last line is JSON.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from transformers import LlamaConfig

from benchmarks.machine import describe
from benchmarks.scheduling import make_config, make_request, print_report, step
from engine.attention_metadata import build_step_inputs, forward_context
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner, build_step_input
from engine.kv_cache_manager import KVCacheManager
from engine.layers.rotary_embedding import build_cos_sin
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.loader.tokenizer import load_tokenizer
from engine.model_runner import ModelRunner
from engine.outputs import ScheduledSequence
from engine.rope_scaling import RopeScaling
from engine.runners import load_runner
from engine.scheduler import Scheduler
from engine.sequence import Sequence as TokenSequence

ROOT = Path(__file__).resolve().parents[1]
CONTEXT, TEXT_LENGTH, CHUNK = 131_072, 16_384, 512
EDGES = (0, 2048, 8192, TEXT_LENGTH)
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS: dict[str, dict[str, Any]] = {"linear": {}, "dynamic": {}, "yarn": {}, "llama3": LLAMA3}

STRETCHES = ("none", "linear", "dynamic", "yarn")


def scaling(kind: str) -> RopeScaling:
    """By 2; none is a longer context and nothing else."""
    if kind == "none":
        return RopeScaling(
            rope_type="linear", factor=1, original_max_position_embeddings=TEXT_LENGTH
        )
    return RopeScaling(rope_type=kind, factor=2)


def time_tables() -> dict[str, float]:
    """Milliseconds for the table [131072, 64] of every kind."""
    results = {}
    for kind in ("default", *KINDS):
        stretched = {} if kind == "default" else {"factor": 16.0, **KINDS[kind]}
        if kind in ("yarn", "llama3"):
            stretched["original_max_position_embeddings"] = 8192
        rope = {"rope_type": kind, "rope_theta": 1e5, **stretched}
        config = LlamaConfig(
            hidden_size=576,
            num_attention_heads=9,
            max_position_embeddings=CONTEXT,
            rope_parameters=rope,
        )
        size = build_cos_sin(config, 64, CONTEXT).nbytes >> 20
        times = []
        for _ in range(5):
            started = time.perf_counter()
            build_cos_sin(config, 64, CONTEXT)
            times.append(time.perf_counter() - started)
        results[kind] = statistics.median(times) * 1e3
        print(f"table {kind:8} {results[kind]:7.1f} ms, {size} MiB")
    return results


def time_scheduler(block_size: int) -> dict[str, float]:
    """Milliseconds of processor time: the step that admits the prompt, a chunk, a decode, and a hot lookup."""
    config = make_config(
        block_size=block_size, num_blocks=2 * CONTEXT // block_size, max_model_len=2 * CONTEXT
    )
    scheduler = Scheduler(config)
    prompt = np.random.default_rng(0).integers(0, 49_152, CONTEXT).tolist()
    scheduler.add_request(make_request(0, prompt, 64))
    times = []
    while scheduler.has_work:
        started = time.thread_time()
        step(scheduler)
        scheduler.view.stats()
        times.append((time.thread_time() - started) * 1e3)
    num_chunks = CONTEXT // CHUNK
    results = {
        "admission": times[0],
        "chunk": statistics.median(times[1:num_chunks]),
        "decode": statistics.median(times[num_chunks:-1]),
        "hot lookup": _lookup_ms(scheduler.kv, prompt),
    }
    for name, value in results.items():
        print(f"scheduler, blocks of {block_size:2}: {name:10} {value:8.3f} ms")
    return results


def _lookup_ms(kv: KVCacheManager, prompt: list[int]) -> float:
    sequence = TokenSequence(1, make_request(1, prompt, 1), 0, 1, frozenset())
    started = time.thread_time()
    hits = kv.lookup(sequence)
    assert len(hits) > 1000, "the prompt is not in the cache"
    return (time.thread_time() - started) * 1e3


def measure_perplexity(path: Path, kind: str, tokens: Sequence[int]) -> dict[str, float]:
    """Perplexity of the tokens between two EDGES, by the first of the two."""
    config = EngineConfig(
        model_path=path,
        model_name=path.name,
        rope_scaling=scaling(kind),
        max_num_seqs=CHUNK,
        max_num_batched_tokens=CHUNK,
        num_blocks=TEXT_LENGTH // 16,
    )
    runner = load_runner(config, lambda stage, share: None)
    losses = np.concatenate(
        [_losses(runner, tokens, start) for start in range(0, TEXT_LENGTH, CHUNK)]
    )
    parts = {
        f"{low} to {high}": float(np.exp(losses[low:high].mean())) for low, high in pairwise(EDGES)
    }
    print(f"perplexity, {kind:8}", ", ".join(f"{k}: {v:.2f}" for k, v in parts.items()), flush=True)
    return parts


def _losses(runner: CpuRunner | ModelRunner, tokens: Sequence[int], start: int) -> np.ndarray:
    """What each token of a chunk makes of the next one: minus its log-probability."""
    blocks = range(-(-(start + CHUNK) // 16))
    run = ScheduledSequence(0, tokens[start : start + CHUNK], start, blocks, ())
    log_probabilities = torch.log_softmax(_all_logits(runner, run), dim=-1)
    following = torch.tensor(tokens[start + 1 : start + CHUNK + 1])
    return -log_probabilities.gather(1, following[:, None])[:, 0].numpy()


@torch.inference_mode()
def _all_logits(runner: CpuRunner | ModelRunner, run: ScheduledSequence) -> torch.Tensor:
    if isinstance(runner, CpuRunner):
        rows = np.arange(CHUNK, dtype=np.int32)
        return torch.from_numpy(
            runner._model.run(replace(build_step_input([run]), output_rows=rows))
        )
    inputs = build_step_inputs([run], 16, runner._memory.device)
    with forward_context(inputs.metadata):
        states = runner._model(inputs.input_ids, inputs.positions)
    return runner._model.compute_logits(states).float().cpu()


def read_text(path: Path) -> list[int]:
    """The project's documents, then its code, as tokens."""
    files = [
        *sorted(ROOT.glob("*.md")),
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("engine/*.py")),
    ]
    text = "\n\n".join(file.read_text(encoding="utf-8") for file in files)
    return load_tokenizer(path).backend_tokenizer.encode(text).ids[: TEXT_LENGTH + 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    data_dir = os.environ.get("PAGETURN_DATA_DIR") or platformdirs.user_data_dir("pageturn")
    path = options.model or resolve_model(SMOLLM2_135M.name, Path(data_dir)).path
    print(f"{describe()}, {path.name}")
    tables = time_tables()
    steps = {f"blocks of {size}": time_scheduler(size) for size in (16, 1)}
    tokens = read_text(path)
    perplexity = {kind: measure_perplexity(path, kind, tokens) for kind in STRETCHES}
    worst = max(
        parts[f"8192 to {TEXT_LENGTH}"] for kind, parts in perplexity.items() if kind != "none"
    )
    print_report(
        "long_context",
        {"tables_ms": tables, "scheduler_ms": steps, "perplexity": perplexity},
        [("finite under every scaling", bool(np.isfinite(worst)))],
    )


if __name__ == "__main__":
    main()
