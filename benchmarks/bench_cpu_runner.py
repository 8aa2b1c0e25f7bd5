"""How fast is the fused CPU runner's bare step: decode by batch size and context, prefill, and Python's share?

    python -m benchmarks.bench_cpu_runner [--model PATH] [--seconds 1.0]

No scheduler, tokeniser or server: `CpuRunner.execute` on made-up plans, greedy, block tables shuffled. The built-in model
must have been fetched before, or another be named. Medians; the last line is JSON.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import platformdirs

from benchmarks.machine import describe
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner, build_step_input
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.outputs import SampleRequest, ScheduledSequence, SchedulerOutput
from engine.sampling_params import SamplingParams

DECODES = ((1, 300), (4, 300), (8, 300), (16, 300), (32, 300), (64, 300), (1, 2000), (32, 2000))
PREFILLS = ((128, 0), (512, 0), (512, 1000))
GREEDY = SamplingParams(temperature=0.0)
WARM_UP_STEPS, MIN_STEPS = 2, 3


def decode_plan(batch: int, context: int, blocks: list[int]) -> SchedulerOutput:
    """`batch` sequences that each compute the token at position `context`; they share blocks where the pool is small."""
    per_sequence = context // 16 + 1
    runs = []
    for index in range(batch):
        table = [blocks[(index * per_sequence + i) % len(blocks)] for i in range(per_sequence)]
        sample = SampleRequest(index, GREEDY, None, [], [])
        runs.append(ScheduledSequence(index, [1000 + index], context, table, (sample,)))
    return SchedulerOutput(tuple(runs), (), batch)


def prefill_plan(num_tokens: int, start: int, blocks: list[int]) -> SchedulerOutput:
    """One chunk of a prompt behind `start` computed tokens."""
    tokens = np.random.default_rng(0).integers(100, 10_000, num_tokens).tolist()
    table = blocks[: (start + num_tokens) // 16 + 1]
    sample = SampleRequest(0, GREEDY, None, [], [])
    run = ScheduledSequence(0, tokens, start, table, (sample,))
    return SchedulerOutput((run,), (), num_tokens)


def median_ms(function: Callable[[], object], seconds: float) -> float:
    """Median duration over at least `seconds`."""
    for _ in range(WARM_UP_STEPS):
        function()
    durations: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(durations) < MIN_STEPS:
        started = time.perf_counter()
        function()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations) * 1e3


def measure(runner: CpuRunner, seconds: float) -> dict[str, float]:
    """Milliseconds of every case, printed as they come."""
    blocks = np.random.default_rng(1).permutation(runner.info.num_blocks).tolist()
    results: dict[str, float] = {}

    def report(name: str, plan: SchedulerOutput) -> None:
        results[name] = median_ms(lambda: runner.execute(plan), seconds)
        rate = plan.num_scheduled_tokens / results[name] * 1e3
        print(f"{name:32} {results[name]:9.2f} ms {rate:8.0f} tokens/s")

    for batch, context in DECODES:
        report(f"decode {batch} at {context}", decode_plan(batch, context, blocks))
    for num_tokens, start in PREFILLS:
        report(f"prefill {num_tokens} at {start}", prefill_plan(num_tokens, start, blocks))
    plan = decode_plan(32, 300, blocks)
    results["arrays of 32"] = median_ms(lambda: build_step_input(plan.scheduled), seconds)
    print(f"{'arrays of a step of 32 decodes':32} {results['arrays of 32']:9.3f} ms")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    data_dir = os.environ.get("PAGETURN_DATA_DIR") or platformdirs.user_data_dir("pageturn")
    path = options.model or resolve_model(SMOLLM2_135M.name, Path(data_dir)).path
    config = EngineConfig(model_path=path, model_name=path.name, num_blocks=4096)
    runner = CpuRunner.load(config, lambda stage, share: None)
    print(f"{describe()}, {path.name}")
    results = measure(runner, options.seconds)
    print(json.dumps({"model": path.name, "machine": describe(), "ms": results}))


if __name__ == "__main__":
    main()
