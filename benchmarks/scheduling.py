"""What the benchmarks of the scheduling half share: a scheduler's limits, a model that costs nothing, a report."""

import json
import platform
from collections.abc import Iterable
from typing import Any

from benchmarks.machine import describe
from engine.config import SchedulerConfig
from engine.outputs import ModelRunnerOutput, SampledToken, SchedulerOutput, StepOutput
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request

BYTES_PER_TOKEN = 23_040
"""KV memory of one token of the built-in model in bfloat16."""


def make_config(**changes: Any) -> SchedulerConfig:
    """Limits of a scheduler; what is not named is as the server's defaults."""
    defaults: dict[str, Any] = {
        "block_size": 16,
        "max_model_len": 8192,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 512,
        "enable_prefix_caching": True,
        "scheduling_policy": "fcfs",
        "model_identity": "none",
        "eos_token_ids": frozenset(),
        "bytes_per_token": BYTES_PER_TOKEN,
        "num_speculative_tokens": 0,
    }
    return SchedulerConfig(**(defaults | changes))


def make_request(request_id: int, prompt: list[int], num_output: int, n: int = 1) -> Request:
    """A request that draws exactly `num_output` tokens per candidate."""
    params = SamplingParams(max_tokens=num_output, ignore_eos=True, n=n)
    return Request(request_id, prompt, params, 0.0)


def draw(plan: SchedulerOutput) -> ModelRunnerOutput:
    """Token 7 for every draw that the plan asks for."""
    token = SampledToken(7)
    return ModelRunnerOutput({s.seq_id: token for entry in plan.scheduled for s in entry.samples})


def step(scheduler: Scheduler) -> tuple[SchedulerOutput, list[StepOutput]]:
    """One step of an engine whose model costs nothing."""
    plan = scheduler.schedule()
    return plan, scheduler.update(plan, draw(plan))


def print_report(benchmark: str, results: Any, reached: Iterable[tuple[str, bool]]) -> None:
    """One line of JSON: the figures, what was to be reached and whether it was, and where."""
    report = {
        "benchmark": benchmark,
        "results": results,
        "reached": dict(reached),
        "python": platform.python_version(),
        "machine": describe(),
    }
    print(json.dumps(report))
