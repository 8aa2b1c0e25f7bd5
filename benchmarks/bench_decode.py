"""How many tokens per second does the torch runner make? `python -m benchmarks.bench_decode`

Steps of the model runner at a fixed context, sampling greedily, without scheduler, text or HTTP: decodes of 1 to 64
sequences, and one prefill chunk. Warm-up, then the median and the best of repeated steps; the last line of the output is
JSON. The built-in model unless `--model` names another.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import platformdirs
import torch

from benchmarks.machine import describe
from engine.config import EngineConfig
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.model_runner import ModelRunner
from engine.outputs import SampleRequest, ScheduledSequence, SchedulerOutput
from engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
MAX_STEPS = 400


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Tokens per second of the torch runner.")
    parser.add_argument("--model", default=SMOLLM2_135M.name)
    parser.add_argument(
        "--data-dir", type=Path, default=Path(platformdirs.user_data_dir("pageturn"))
    )
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--quantization", default="auto", choices=["auto", "none"])
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each case")
    return parser.parse_args()


def load(options: argparse.Namespace) -> ModelRunner:
    files = resolve_model(options.model, options.data_dir)
    config = EngineConfig(
        model_path=files.path,
        model_name=files.name,
        dtype=options.dtype,
        quantization=options.quantization,
        attention_backend=options.attention_backend,
        max_num_batched_tokens=max(options.chunk, *options.batches),
    )
    return ModelRunner.load(config, lambda stage, share: None)


def make_plan(runner: ModelRunner, num_seqs: int, query_len: int, seq_len: int) -> SchedulerOutput:
    """`num_seqs` sequences that compute the last `query_len` of `seq_len` tokens, all on blocks of their own."""
    block_size = runner.scheduler_config.block_size
    num_blocks = -(-seq_len // block_size)
    scheduled = tuple(
        ScheduledSequence(
            seq_id=i,
            token_ids=[(97 * i + 31 * t) % runner.info.vocab_size for t in range(query_len)],
            start_position=seq_len - query_len,
            block_table=[(i + num_seqs * b) % runner.info.num_blocks for b in range(num_blocks)],
            samples=(SampleRequest(i, GREEDY, None, (), ()),),
        )
        for i in range(num_seqs)
    )
    return SchedulerOutput(scheduled, (), num_seqs * query_len)


def measure(runner: ModelRunner, plan: SchedulerOutput, seconds: float) -> dict[str, float]:
    """Milliseconds of a step, and tokens per second at the median and at the best."""
    times: list[float] = []
    runner.execute(plan)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and len(times) < MAX_STEPS:
        started = time.perf_counter()
        runner.execute(plan)
        times.append(time.perf_counter() - started)
    median, best = statistics.median(times), min(times)
    return {
        "median_ms": round(median * 1e3, 2),
        "best_ms": round(best * 1e3, 2),
        "tokens_per_second": round(plan.num_scheduled_tokens / median, 1),
        "best_tokens_per_second": round(plan.num_scheduled_tokens / best, 1),
    }


def main() -> None:
    options = parse_arguments()
    runner = load(options)
    cases = {f"decode x{n}": (n, 1, options.context) for n in options.batches}
    cases[f"prefill {options.chunk}"] = (1, options.chunk, options.chunk)
    results = {}
    for name, case in cases.items():
        results[name] = measure(runner, make_plan(runner, *case), options.seconds)
        print(f"{name:>12}: {results[name]}")
    report = {
        "benchmark": "decode",
        "results": results,
        "context": options.context,
        "model": runner.info.model_name,
        "quantization": runner.info.quantization,
        "dtype": runner.info.dtype,
        "attention_backend": runner.info.attention_backend,
        "load_seconds": round(runner.info.load_seconds, 2),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": describe(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
