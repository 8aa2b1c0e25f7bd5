"""How fast is the fused CPU runner's bare step: decode by batch size and context, prefill, and Python's share?

    python -m benchmarks.bench_cpu_runner [--model PATH] [--seconds 1.0] [--cpu-isa auto|avx512|avx2]

No scheduler, tokeniser or server: `CpuRunner.execute` on made-up plans, greedy, block tables shuffled; how fast decode reads long
contexts beside what the machine's memory gives; and 64 sequences that take turns being greedy and sampled in several ways. The built-in model must have been fetched before, or another be named.
Medians; the last line is JSON.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import platformdirs

from benchmarks.floors import read_bandwidth
from benchmarks.machine import describe
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner, build_step_input
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.outputs import SampleRequest, ScheduledSequence, SchedulerOutput
from engine.sampling_params import SamplingParams
from kernels.cpu.fused.features import INSTRUCTION_SETS, num_physical_cores

DECODES = ((1, 300), (4, 300), (8, 300), (16, 300), (32, 300), (64, 300), (1, 2000))
LONG, SHORT = (32, 2000), (32, 15)
PREFILLS = ((128, 0), (512, 0), (512, 1000))
GREEDY = SamplingParams(temperature=0.0)
CHAT = SamplingParams(temperature=0.8, top_p=0.95, top_k=50)
SAMPLED = {
    "greedy": GREEDY,
    "temperature": SamplingParams(temperature=0.8),
    "top_k, top_p": CHAT,
    "top_p": replace(CHAT, top_k=0),
    "min_p": SamplingParams(temperature=0.8, min_p=0.05),
    "penalties": replace(CHAT, repetition_penalty=1.1, presence_penalty=0.5),
    "logit_bias": replace(CHAT, logit_bias={5: 1.0, 900: -2.0}),
    "logprobs": replace(CHAT, logprobs=5),
}
SAMPLED_BATCH, SAMPLED_OUTPUT = 64, 150
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


def sampled_plan(params: SamplingParams, blocks: list[int]) -> SchedulerOutput:
    """A step of decodes at position 300 that draw by `params`, with a seed and some output each."""
    plan, output = decode_plan(SAMPLED_BATCH, 300, blocks), list(range(100, 100 + SAMPLED_OUTPUT))
    runs = (
        replace(run, samples=(SampleRequest(run.seq_id, params, run.seq_id, [], output),))
        for run in plan.scheduled
    )
    return replace(plan, scheduled=tuple(runs))


def measure_sampling(runner: CpuRunner, blocks: list[int], seconds: float) -> dict[str, float]:
    """Whole steps by turns; milliseconds of processor time of each kind, and printed as a share of greedy ones."""
    plans = {name: sampled_plan(params, blocks) for name, params in SAMPLED.items()}
    spent: dict[str, list[float]] = {name: [] for name in plans}
    end = time.perf_counter() + seconds * len(plans)
    while time.perf_counter() < end or len(spent["greedy"]) < MIN_STEPS:
        for name, plan in plans.items():
            started = time.process_time()
            runner.execute(plan)
            spent[name].append(time.process_time() - started)
    medians = {name: statistics.median(times) * 1e3 for name, times in spent.items()}
    for name, value in medians.items():
        ratio = value / medians["greedy"]
        print(f"64 sequences, {name:18} {value:9.2f} ms of processor time {ratio:6.2f}")
    return medians


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
    for batch, context in (LONG, SHORT):
        report(f"decode {batch} at {context}", decode_plan(batch, context, blocks))
    results |= attention_bandwidth(runner, results)
    plan = decode_plan(32, 300, blocks)
    results["arrays of 32"] = median_ms(lambda: build_step_input(plan.scheduled), seconds)
    print(f"{'arrays of a step of 32 decodes':32} {results['arrays of 32']:9.3f} ms")
    return results


def attention_bandwidth(runner: CpuRunner, results: dict[str, float]) -> dict[str, float]:
    """How fast a step reads keys and values that a step of short contexts does not read, and the share of what memory gives."""
    info, batch = runner.info, LONG[0]
    long, short = (results[f"decode {batch} at {context}"] for _, context in (LONG, SHORT))
    num_bytes = batch * (LONG[1] - SHORT[1]) * info.bytes_per_block // info.block_size
    rate = num_bytes / (long - short) / 1e6
    bandwidth = read_bandwidth(num_physical_cores()) / 1e9
    print(
        f"{'attention, 32 at 2000':32} {rate:9.1f} GB/s, {rate / bandwidth:.0%} of {bandwidth:.1f}"
    )
    return {"attention GB/s": rate, "read GB/s": bandwidth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--cpu-isa", choices=("auto", *INSTRUCTION_SETS), default="auto")
    options = parser.parse_args()
    data_dir = os.environ.get("PAGETURN_DATA_DIR") or platformdirs.user_data_dir("pageturn")
    path = options.model or resolve_model(SMOLLM2_135M.name, Path(data_dir)).path
    config = EngineConfig(
        model_path=path, model_name=path.name, num_blocks=4096, cpu_isa=options.cpu_isa
    )
    runner = CpuRunner.load(config, lambda stage, share: None)
    print(f"{describe()}, {path.name}, {runner.info.backend_reason}")
    results = measure(runner, options.seconds)
    blocks = list(range(runner.info.num_blocks))
    sampled = measure_sampling(runner, blocks, options.seconds)
    print(json.dumps({"model": path.name, "machine": describe(), "ms": results, "cpu_ms": sampled}))


if __name__ == "__main__":
    main()
