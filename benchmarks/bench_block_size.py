"""Which block size? `python -m benchmarks.bench_block_size`

What small blocks cost: the built-in model's step times by block size, for decodes and prefill, in every runner that offers
the size here, all sizes taking turns. What large blocks cost: slots that hold no token, and prompt tokens that the prefix
cache cannot give because only full blocks enter it, both by the real scheduler on a seeded trace of chats whose turns repeat
what was said before, with a model that costs nothing; these are exact counts. The last line is JSON.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import platformdirs

from benchmarks.machine import describe
from benchmarks.scheduling import make_config, make_request, print_report, step
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner, fused_runner_reason
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.loader.model import open_model
from engine.model_runner import ModelRunner
from engine.outputs import SampleRequest, ScheduledSequence, SchedulerOutput
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.worker import Runner
from kernels.cpu.fused.features import cpu_features

BLOCK_SIZES = (1, 4, 8, 16, 32, 64, 128)
GREEDY = SamplingParams(temperature=0.0)
POOL_TOKENS, CHUNK = 16_384, 512
NUM_CHATS, NUM_TURNS, NUM_SYSTEM, SEED = 64, 4, 40, 1

Case = tuple[str, int, int, int]
"""Name, sequences, tokens each of them computes, tokens before those."""

CASES: tuple[Case, ...] = (
    ("1 decode at 300", 1, 1, 300),
    ("16 decodes at 300", 16, 1, 300),
    ("8 decodes at 2,000", 8, 1, 2000),
    ("prefill of 512", 1, 512, 0),
    ("512 behind 1,500", 1, 512, 1500),
)


def make_plan(case: Case, block_size: int) -> SchedulerOutput:
    """One step, its blocks scattered over the pool."""
    _, num_sequences, num_tokens, start = case
    blocks = np.random.default_rng(1).permutation(POOL_TOKENS // block_size).tolist()
    size = -(-(start + num_tokens) // block_size)
    runs = []
    for i in range(num_sequences):
        table = [blocks[(i * size + k) % len(blocks)] for k in range(size)]
        sample = SampleRequest(i, GREEDY, None, [], [])
        runs.append(ScheduledSequence(i, [1000 + i] * num_tokens, start, table, (sample,)))
    return SchedulerOutput(tuple(runs), (), num_sequences * num_tokens)


def load_runners(options: argparse.Namespace) -> Iterator[tuple[str, int, Runner]]:
    """Each runner with each block size that it serves here."""
    files = resolve_model(options.model, options.data_dir)
    model = open_model(files.path).config
    for block_size in BLOCK_SIZES:
        config = EngineConfig(
            model_path=files.path,
            model_name=files.name,
            block_size=block_size,
            num_blocks=POOL_TOKENS // block_size,
            max_num_batched_tokens=CHUNK,
        )
        if fused_runner_reason(config, model, cpu_features()) is None:
            yield "fused", block_size, CpuRunner.load(config, lambda stage, share: None)
        yield "torch", block_size, ModelRunner.load(config, lambda stage, share: None)


def time_steps(options: argparse.Namespace) -> dict[str, dict[str, dict[int, float]]]:
    """Milliseconds {runner: {case: {block size: median}}}; block sizes take turns."""
    loaded = list(load_runners(options))
    figures: dict[str, dict[str, dict[int, float]]] = {}
    for case in CASES:
        times: dict[tuple[str, int], list[float]] = {}
        plans = {block_size: make_plan(case, block_size) for block_size in BLOCK_SIZES}
        for turn in range(options.turns + 1):
            for name, block_size, runner in loaded:
                seconds = _seconds(lambda r=runner, p=plans[block_size]: r.execute(p))
                if turn:
                    times.setdefault((name, block_size), []).append(seconds)
        for (name, block_size), durations in times.items():
            row = figures.setdefault(name, {}).setdefault(case[0], {})
            row[block_size] = round(statistics.median(durations) * 1e3, 2)
    return figures


def _seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def replay_chats(block_size: int) -> dict[str, float]:
    """Chats of several turns that share a system prompt, one turn of each after the other, and what blocks waste."""
    draw = random.Random(SEED)
    config = make_config(block_size=block_size, num_blocks=2**17 // block_size, max_num_seqs=64)
    scheduler, next_id = Scheduler(config), 0
    system = [draw.randrange(49_000) for _ in range(NUM_SYSTEM)]
    histories = [list(system) for _ in range(NUM_CHATS)]
    stored = held = 0
    for _ in range(NUM_TURNS):
        for history in histories:
            history += [
                draw.randrange(49_000) for _ in range(round(draw.lognormvariate(3.3, 0.8)) + 4)
            ]
            num_output = round(draw.lognormvariate(4.5, 0.8)) + 1
            scheduler.add_request(make_request(next_id, list(history), num_output))
            history += [7] * num_output
            next_id += 1
        while scheduler.has_work:
            step(scheduler)
            stats = scheduler.view.stats()
            stored += stats.tokens_stored
            held += (stats.blocks.private + stats.blocks.shared) * block_size
    counters = scheduler.view.stats().counters
    return {
        "unused_slots": round(1 - stored / held, 4),
        "prefix_hits": round(counters.prefix_hits / counters.prefix_queries, 4),
    }


def print_table(rows: dict[str, dict[int, float]], title: str, unit: str) -> None:
    """One line per case, one column per block size, a dash where there is no figure."""
    print(f"{title:28}" + "".join(f"{size:>9}" for size in BLOCK_SIZES))
    for name, figures in rows.items():
        cells = (f"{figures[size]:>9}" if size in figures else f"{'-':>9}" for size in BLOCK_SIZES)
        print(f"{name + ', ' + unit:28}" + "".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description="Step time and waste by block size.")
    parser.add_argument("--model", default=SMOLLM2_135M.name)
    parser.add_argument("--data-dir", type=Path, default=platformdirs.user_data_path("pageturn"))
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    print(describe())
    times = time_steps(options)
    for runner, rows in times.items():
        print_table(rows, f"{runner} runner", "ms")
    waste = {block_size: replay_chats(block_size) for block_size in BLOCK_SIZES}
    shares = {
        key: {size: figures[key] for size, figures in waste.items()}
        for key in ("unused_slots", "prefix_hits")
    }
    print_table(shares, "chats", "share")
    print_report("block_size", {"milliseconds": times, "shares": shares}, [])


if __name__ == "__main__":
    main()
