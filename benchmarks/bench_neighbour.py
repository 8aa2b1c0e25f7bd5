"""Does the engine leave room for others, and others for it? `python -m benchmarks.bench_neighbour`

Two questions. While prompts of 4,000 tokens are computed, how late does the event loop of the same process wake up? And how
much does a decoding stream lose to a busy process on every core, next to the share of the processor that it then has left?
Medians and percentiles of rounds that take turns; the last line is JSON.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import platformdirs

from benchmarks.bench_cpu import answer, prompt_of
from benchmarks.machine import describe
from benchmarks.scheduling import print_report
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from kernels.cpu.fused.features import num_physical_cores

PROMPT_TOKENS, NUM_TOKENS = 4000, 64
TICK_S = 0.001
LATEST_MS = 20.0


def spin() -> None:
    """Keeps one core busy until it is ended."""
    while True:
        sum(range(1000))


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute, for as long as the context lasts."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


async def delays_while(task: asyncio.Task[object]) -> list[float]:
    """By how many milliseconds the event loop woke up too late, again and again until `task` ends."""
    delays = []
    while not task.done():
        started = time.perf_counter()
        await asyncio.sleep(TICK_S)
        delays.append((time.perf_counter() - started - TICK_S) * 1e3)
    await task
    return delays


async def prefill_delays(engine: AsyncEngine, rounds: int) -> dict[str, float]:
    """Percentiles of the delay during prefill, and of the same loop while nothing is computed."""
    busy: list[float] = []
    idle: list[float] = []
    for salt in range(rounds):
        prompt = prompt_of(salt, 0, PROMPT_TOKENS)
        busy += await delays_while(asyncio.create_task(answer(engine, prompt, 1)))
        idle += await delays_while(asyncio.create_task(asyncio.sleep(0.5)))
    return {
        f"{name} p{percent}": round(float(np.percentile(delays, percent)), 2)
        for name, delays in (("prefill", busy), ("idle", idle))
        for percent in (50, 99)
    }


async def beside_processes(engine: AsyncEngine, rounds: int) -> dict[str, float]:
    """Decode speed beside a busy process on every core, as a share of that without, by turns."""
    shares = []
    for salt in range(rounds):
        alone = (await answer(engine, prompt_of(salt, 1, 128), NUM_TOKENS)).timings
        with busy_processes(num_physical_cores()):
            await asyncio.sleep(0.5)
            beside = (await answer(engine, prompt_of(salt, 2, 128), NUM_TOKENS)).timings
        shares.append(beside.tokens_per_second / alone.tokens_per_second)
    return {"share of its speed beside busy processes": round(statistics.median(shares), 2)}


async def run(options: argparse.Namespace) -> None:
    files = resolve_model(options.model, options.data_dir)
    print(f"{describe()}, {files.name}")
    config = EngineConfig(
        model_path=files.path, model_name=files.name, num_blocks=2048, enable_prefix_caching=False
    )
    engine = AsyncEngine(config)
    engine.start()
    await engine.wait_ready()
    await answer(engine, prompt_of(99, 0, 512), 8)
    results = await prefill_delays(engine, options.rounds)
    results |= await beside_processes(engine, options.rounds)
    await engine.shutdown()
    for name, value in results.items():
        print(f"{name:>42} {value:8.2f}")
    reached = [
        (
            f"event loop at most {LATEST_MS:.0f} ms late in 99 of 100",
            results["prefill p99"] < LATEST_MS,
        ),
        (
            "at least a quarter of the speed beside busy processes",
            list(results.values())[-1] >= 0.25,
        ),
    ]
    print_report("bench_neighbour", results, reached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=SMOLLM2_135M.name)
    parser.add_argument("--data-dir", type=Path, default=platformdirs.user_data_path("pageturn"))
    parser.add_argument("--rounds", type=int, default=3)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
