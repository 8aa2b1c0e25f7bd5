"""How fast does a caller of the engine get text? `python -m benchmarks.bench_engine`

The whole engine in this process, from token ids to text: worker thread, scheduler, model, sampling, detokenising; no HTTP.
The fused CPU runner and the torch runner take turns in one run, so that their ratio holds on a busy machine. For each
number of streams: prompts of 128 tokens, 128 tokens out, sampled at temperature 0.8; one case is one request with three
candidates. Warm-up, then the median of `--rounds`; the last line is JSON.
"""

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

import platformdirs

from benchmarks.machine import describe
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.cpu_runner import Progress
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.loading import load_model
from engine.model_runner import ModelRunner
from engine.outputs import CandidateFinished
from engine.sampling_params import SamplingParams
from engine.worker import LoadedModel

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 128
CASES = {"1 stream": (1, 1), "3 candidates": (1, 3), "8 streams": (8, 1), "32 streams": (32, 1)}


def load_torch(config: EngineConfig, progress: Progress) -> LoadedModel:
    """The same model in the torch runner."""
    from engine.loader.tokenizer import load_tokenizer
    from engine.tokenizer import Tokenizer

    tokenizer = Tokenizer(load_tokenizer(config.model_path))
    return LoadedModel(ModelRunner.load(config, progress), tokenizer)


async def stream(engine: AsyncEngine, prompt: list[int], n: int) -> tuple[int, float]:
    """Tokens of all candidates, and milliseconds to the first."""
    params = SamplingParams(n=n, temperature=0.8, seed=1, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    tokens, first = 0, 0.0
    async for event in engine.submit(prompt, params):
        if isinstance(event, CandidateFinished):
            tokens += event.usage.completion_tokens
            first = event.timings.ttft_ms
    return tokens, first


async def measure(engine: AsyncEngine, case: tuple[int, int], salt: int) -> tuple[float, float]:
    """Output tokens per second over all streams, and the median time to the first token."""
    streams, n = case
    prompts = [
        [(salt * 7919 + i * 104_729 + t * 31) % 40_000 + 100 for t in range(PROMPT_TOKENS)]
        for i in range(streams)
    ]
    started = time.perf_counter()
    results = await asyncio.gather(*(stream(engine, prompt, n) for prompt in prompts))
    seconds = time.perf_counter() - started
    return sum(r[0] for r in results) / seconds, statistics.median(r[1] for r in results)


async def run(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Medians {case: {runner: [tokens per second, ms to the first token]}}."""
    files = resolve_model(options.model, options.data_dir)
    config = EngineConfig(model_path=files.path, model_name=files.name, num_blocks=1024)
    loads = {"auto": load_model} if options.auto_only else {"auto": load_model, "torch": load_torch}
    engines = {name: AsyncEngine(config, load=load) for name, load in loads.items()}
    for engine in engines.values():
        engine.start()
        await engine.wait_ready()
    figures: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for salt in range(options.rounds + 1):
        for case, shape in CASES.items():
            for name, engine in engines.items():
                result = await measure(engine, shape, salt)
                if salt:
                    figures.setdefault(case, {}).setdefault(name, []).append(result)
    for engine in engines.values():
        await engine.shutdown()
    return {
        case: {
            name: [round(statistics.median(column), 1) for column in zip(*results, strict=True)]
            for name, results in runners.items()
        }
        for case, runners in figures.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens per second of the whole engine.")
    parser.add_argument("--model", default=SMOLLM2_135M.name)
    parser.add_argument("--data-dir", type=Path, default=platformdirs.user_data_path("pageturn"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--auto-only", action="store_true", help="leave the torch runner out")
    options = parser.parse_args()
    machine = describe()
    print(machine)
    figures = asyncio.run(run(options))
    for case, runners in figures.items():
        for name, (rate, first) in runners.items():
            print(f"{case:>14}  {name:6} {rate:8.1f} tokens/s  first after {first:8.1f} ms")
    print(json.dumps({"machine": machine, "tokens_per_second_and_ttft_ms": figures}))


if __name__ == "__main__":
    main()
