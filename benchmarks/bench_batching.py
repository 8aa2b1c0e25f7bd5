"""What does continuous batching buy over static batching? `python -m benchmarks.bench_batching`

One seeded trace of requests with chat-like lengths, all waiting from the start, greedy, through the same runner, so with the
same kernels, the same most sequences in a step and the same most tokens in a step. Three ways take turns:

- `static`: requests in batches of `--max-num-seqs`; prompts padded to the batch's longest; every row is computed until the
  batch's longest answer is complete; then the next batch starts.
- `ragged`: the same without padding: a sequence whose answer is complete leaves, but nobody takes its place until the
  whole batch has ended.
- `continuous`: the real scheduler.

So static : ragged is what padding costs, ragged : continuous what waiting for the batch costs. Tokens per second count the
trace's own output tokens. Medians of `--rounds`; the last line is JSON. To reach: continuous 2.5 times static.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from benchmarks.machine import describe
from benchmarks.scheduling import make_request, print_report
from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.outputs import SampleRequest, ScheduledSequence, SchedulerOutput
from engine.runners import load_runner
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.worker import Runner

SEED, MAX_PROMPT, MAX_OUTPUT = 1, 256, 512
GREEDY = SamplingParams(temperature=0.0)
RATIO = 2.5


@dataclass
class Job:
    """One request of the trace. `num_computed` and `num_drawn` say how far it is."""

    prompt: list[int]
    num_output: int
    num_computed: int = 0
    num_drawn: int = 0

    @property
    def num_wanted(self) -> int:
        return len(self.prompt) + self.num_drawn - self.num_computed

    def take(self, num_tokens: int) -> list[int]:
        """The next tokens to compute; which token was drawn does not matter to the time it takes."""
        known = [*self.prompt, *([7] * self.num_drawn)]
        return known[self.num_computed : self.num_computed + num_tokens]


@dataclass(frozen=True)
class Outcome:
    """How long a way took, in steps and rows of the model, and in seconds."""

    seconds: float
    steps: int
    rows: int


def make_trace(num_requests: int) -> list[Job]:
    """Log-normal lengths: prompts of 60 tokens and answers of 90 in the mean, with long tails."""
    draw = random.Random(SEED)
    jobs = []
    for _ in range(num_requests):
        num_prompt = min(MAX_PROMPT, max(4, round(draw.lognormvariate(3.7, 0.9))))
        num_output = min(MAX_OUTPUT, max(1, round(draw.lognormvariate(4.0, 1.0))))
        jobs.append(Job([draw.randrange(100, 40_000) for _ in range(num_prompt)], num_output))
    return jobs


def run_in_batches(jobs: list[Job], runner: Runner, *, is_padded: bool) -> Outcome:
    """Batch after batch, each to its end."""
    started, steps, rows = time.perf_counter(), 0, 0
    size = runner.scheduler_config.max_num_seqs
    for start in range(0, len(jobs), size):
        batch = jobs[start : start + size]
        for plan in plans_of_batch(_padded(batch) if is_padded else batch, runner):
            runner.execute(plan)
            steps += 1
            rows += plan.num_scheduled_tokens
    return Outcome(time.perf_counter() - started, steps, rows)


def plans_of_batch(batch: list[Job], runner: Runner) -> Iterator[SchedulerOutput]:
    """Steps until every answer of the batch is complete. Each sequence has a region of blocks of its own."""
    limits = runner.scheduler_config
    region = -(-(MAX_PROMPT + MAX_OUTPUT) // limits.block_size)
    while live := [(i, job) for i, job in enumerate(batch) if job.num_drawn < job.num_output]:
        budget, runs = limits.max_num_batched_tokens, []
        for i, job in live:
            num_tokens = min(job.num_wanted, budget)
            if num_tokens == 0:
                break
            table = range(i * region, (i + 1) * region)
            is_last = num_tokens == job.num_wanted
            samples = (SampleRequest(i, GREEDY, None, [], []),) if is_last else ()
            tokens = job.take(num_tokens)
            runs.append(ScheduledSequence(i, tokens, job.num_computed, table, samples))
            job.num_computed += num_tokens
            job.num_drawn += is_last
            budget -= num_tokens
        yield SchedulerOutput(tuple(runs), (), limits.max_num_batched_tokens - budget)


def _padded(batch: list[Job]) -> list[Job]:
    """Every prompt and every answer as long as the batch's longest."""
    num_prompt = max(len(job.prompt) for job in batch)
    num_output = max(job.num_output for job in batch)
    return [Job([0] * (num_prompt - len(job.prompt)) + job.prompt, num_output) for job in batch]


def run_continuously(jobs: list[Job], runner: Runner) -> Outcome:
    """The engine's own way."""
    core = EngineCore(Scheduler(runner.scheduler_config), runner)
    started = time.perf_counter()
    for i, job in enumerate(jobs):
        core.add_request(make_request(i, job.prompt, job.num_output))
    while core.has_work:
        core.step()
    seconds = time.perf_counter() - started
    rows = sum(len(job.prompt) + job.num_output - 1 for job in jobs)
    return Outcome(seconds, core.stats().num_steps, rows)


WAYS: dict[str, Callable[[list[Job], Runner], Outcome]] = {
    "static": lambda jobs, runner: run_in_batches(jobs, runner, is_padded=True),
    "ragged": lambda jobs, runner: run_in_batches(jobs, runner, is_padded=False),
    "continuous": run_continuously,
}


def measure(options: argparse.Namespace, runner: Runner) -> dict[str, list[Outcome]]:
    """All ways, turn by turn; the first turn, of a few requests, only warms up."""
    outcomes: dict[str, list[Outcome]] = {name: [] for name in WAYS}
    for turn in range(options.rounds + 1):
        for name, way in WAYS.items():
            outcome = way(make_trace(options.requests if turn else 8), runner)
            if turn:
                outcomes[name].append(outcome)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description="Continuous against static batching.")
    parser.add_argument("--model", default=SMOLLM2_135M.name)
    parser.add_argument("--data-dir", type=Path, default=platformdirs.user_data_path("pageturn"))
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    files = resolve_model(options.model, options.data_dir)
    config = EngineConfig(
        model_path=files.path,
        model_name=files.name,
        max_num_seqs=options.max_num_seqs,
        max_model_len=MAX_PROMPT + MAX_OUTPUT,
        num_blocks=options.max_num_seqs * (MAX_PROMPT + MAX_OUTPUT) // 16,
        enable_prefix_caching=False,
    )
    runner = load_runner(config, lambda stage, share: None)
    print(describe())
    num_output = sum(job.num_output for job in make_trace(options.requests))
    results = {}
    for name, outcomes in measure(options, runner).items():
        seconds = statistics.median(outcome.seconds for outcome in outcomes)
        rate = num_output / seconds
        steps, rows = outcomes[0].steps, outcomes[0].rows
        results[name] = {"tokens_per_second": round(rate, 1), "steps": steps, "rows": rows}
        print(f"{name:>10}: {rate:7.1f} output tokens/s, {steps:>5} steps, {rows:>6} rows computed")
    rates = {name: figures["tokens_per_second"] for name, figures in results.items()}
    results["ratios"] = {
        "padding": round(rates["ragged"] / rates["static"], 2),
        "waiting": round(rates["continuous"] / rates["ragged"], 2),
        "both": round(rates["continuous"] / rates["static"], 2),
    }
    is_reached = rates["continuous"] >= RATIO * rates["static"]
    print_report("batching", results, [(f"{RATIO:g} times static batching", is_reached)])


if __name__ == "__main__":
    main()
