"""What a GPU's memory holds: the share left for KV blocks, and errors that name the sizes when something does not fit."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import ModelLoadError
from engine.models.config import ModelConfig

GRAPHS_AND_LIBRARIES = 512 << 20
"""Kept free for recorded decode steps and the workspaces of matrix libraries."""


def activation_bytes(model: ModelConfig, num_tokens: int, num_rows: int) -> int:
    """At most what one step needs beside weights and KV: `num_tokens` computed, logits of `num_rows`."""
    widths = 6 * model.hidden_size + 3 * model.intermediate_size
    heads = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    return 4 * num_tokens * (widths + heads) + 3 * 4 * num_rows * model.vocab_size


def kv_budget(utilization: float, reserved: int, device: torch.device) -> tuple[int, str]:
    """Bytes for KV blocks when everything together may take `utilization` of the GPU, and in one line why."""
    free, total = torch.cuda.mem_get_info(device)
    budget = int(total * utilization) - (total - free) - reserved
    reason = (
        f"{utilization:.0%} of {mib(total)}, less {mib(total - free)} in use and {mib(reserved)} "
        "for computing"
    )
    return max(0, budget), reason


@contextmanager
def needs_memory(what: str, advice: str) -> Iterator[None]:
    """Turn a GPU's "out of memory" into a ModelLoadError that says what did not fit, the sizes, and what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        raise ModelLoadError(
            f"{what} did not fit into the GPU's memory: {mib(free)} of {mib(total)} are free; {advice}"
        ) from error


def mib(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / 2**20:,.0f} MiB"
