"""What drawing a step's tokens costs where the logits are; a draw that waits for the device raises."""

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu_rows import Row
from benchmarks.gpu_speed import Machine
from engine.device_sampler import DeviceSampler
from engine.outputs import SampleRequest
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams

VOCAB_SIZE, BATCH, REPEATS = 128_256, 64, 20
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k 40": {"top_k": 40},
    "top_p 0.95": {"top_p": 0.95},
}


def draw_times(machine: Machine) -> Iterator[Row]:
    """Milliseconds of a draw for all rows of a batch, ids on the device; they reach the host when asked for."""
    vocab_size, batch = (500, 2) if machine.dry_run else (VOCAB_SIZE, BATCH)
    logits = torch.randn((batch, vocab_size), device=machine.device) * 3
    for name, params in ASKED.items():
        request = SampleRequest(0, SamplingParams(**params), 0, [1], [])
        seconds = _seconds(logits, [request] * batch)
        yield Row(f"draw for {batch} rows of {vocab_size}, {name}", 1000 * seconds, "ms")


def _seconds(logits: torch.Tensor, requests: list[SampleRequest]) -> float:
    sampler = DeviceSampler(Sampler(0))
    on_gpu = logits.is_cuda
    ids = sampler._draw(logits, requests)
    ids.tolist()
    if on_gpu:
        torch.cuda.set_sync_debug_mode("error")
    start = time.perf_counter()
    try:
        for _ in range(REPEATS):
            ids = sampler._draw(logits, requests)
    finally:
        if on_gpu:
            torch.cuda.set_sync_debug_mode("default")
    ids.tolist()
    return (time.perf_counter() - start) / REPEATS
