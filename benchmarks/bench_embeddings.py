"""How near are the embeddings of each CPU runner to those in float32, and what do they cost in a step?

    python -m benchmarks.bench_embeddings [--model PATH]

Twenty short texts of several kinds, one prompt a step. The cost is that of summing 512 states in the fused runner, beside
the step that computes them, both in processor time (minima). The last line is JSON.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import platformdirs

from benchmarks.bench_cpu_runner import prefill_plan
from benchmarks.machine import describe
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.engine_core import Executor
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.loader.tokenizer import load_tokenizer
from engine.model_runner import ModelRunner
from engine.outputs import ScheduledSequence, SchedulerOutput
from engine.pooling import StateSum

TEXTS = (
    "Hello",
    "The cat sat on the mat.",
    "A river is a natural stream of water.",
    "Bread is baked from flour, water, yeast and salt.",
    "Gravity pulls things toward each other.",
    "def add(a, b):\n    return a + b",
    "SELECT name FROM users WHERE age > 30;",
    "Bonjour, comment allez-vous aujourd'hui ?",
    "Die Katze schläft auf dem Sofa.",
    "東京は日本の首都です。",
    "What is the capital of France?",
    "Paris is the capital of France.",
    "The stock market fell sharply on Monday.",
    "Shares dropped at the start of the week.",
    "I love hiking in the mountains in summer.",
    "Quantum computers use qubits.",
    "Once upon a time there was a lighthouse keeper. " * 12,
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
    "Please remind me to call the dentist tomorrow at nine.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. " * 5,
)
NUM_COST_STEPS = 10


def embed(runner: Executor, token_ids: list[int]) -> tuple[float, ...]:
    """One prompt's embedding, in one step."""
    table = range(len(token_ids) // 16 + 1)
    run = ScheduledSequence(0, token_ids, 0, table, (), wants_states=True)
    output = runner.execute(SchedulerOutput((run,), (), len(token_ids)))
    states = StateSum()
    states.add(0, len(token_ids), output.state_sums[0])
    values = states.embedding()
    assert values is not None, "states are not finite"
    return values


def compare(ours: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Cosines of each text with itself, and whether each text's nearest other one is the same."""
    cosines = (ours * exact).sum(1)
    nearest = [np.argsort(-(x @ x.T), axis=1)[:, 1] for x in (ours, exact)]
    return {
        "cosine mean": float(cosines.mean()),
        "cosine min": float(cosines.min()),
        "nearest agrees": float((nearest[0] == nearest[1]).mean()),
    }


def cpu_ms(function: Callable[[], object]) -> float:
    """The least processor time of several calls."""
    times = []
    for _ in range(NUM_COST_STEPS):
        started = time.process_time()
        function()
        times.append(time.process_time() - started)
    return min(times) * 1e3


def measure_cost(runner: CpuRunner) -> dict[str, float]:
    """Milliseconds of a step of 512 tokens, and of summing their states."""
    plan = prefill_plan(512, 0, list(range(64)))
    step = cpu_ms(lambda: runner.execute(plan))
    return {"step of 512": step, "states of 512": cpu_ms(lambda: runner._sum_rows(0, 512))}


def load_all(path: Path) -> dict[str, ModelRunner | CpuRunner]:
    """The exact runner first."""

    def config(dtype: Literal["auto", "float32"]) -> EngineConfig:
        return EngineConfig(model_path=path, model_name=path.name, num_blocks=128, dtype=dtype)

    quiet = {"progress": lambda stage, share: None}
    return {
        "float32": ModelRunner.load(config("float32"), **quiet),
        "torch, packed": ModelRunner.load(config("auto"), **quiet),
        "fused": CpuRunner.load(config("auto"), **quiet),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    data_dir = os.environ.get("PAGETURN_DATA_DIR") or platformdirs.user_data_dir("pageturn")
    path = options.model or resolve_model(SMOLLM2_135M.name, Path(data_dir)).path
    tokenizer = load_tokenizer(path)
    prompts = [list(tokenizer.encode(text)) for text in TEXTS]
    runners = load_all(path)
    found = {n: np.array([embed(r, p) for p in prompts]) for n, r in runners.items()}
    results = {name: compare(found[name], found["float32"]) for name in found if name != "float32"}
    fused = runners["fused"]
    assert isinstance(fused, CpuRunner), "the fused runner is a CpuRunner"
    cost = measure_cost(fused)
    print(f"{describe()}, {path.name}, {len(TEXTS)} texts")
    for name, figures in (*results.items(), ("processor time, ms", cost)):
        print(f"{name:20} " + ", ".join(f"{k} {v:.5f}" for k, v in figures.items()))
    print(json.dumps({"machine": describe(), "model": path.name, "accuracy": results, "ms": cost}))


if __name__ == "__main__":
    main()
