"""The KV pool: how many blocks it has, and its memory.

Rule for the number of blocks: `--num-blocks`; else what `--kv-cache-memory` holds; else on a CPU a quarter of the free memory,
at most MODEST_BYTES or one sequence of the longest length, whichever is more, and on a GPU what `engine.gpu_memory` leaves;
never more than all sequences of the longest length need.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.config import ByteSize, EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.gpu_memory import mib
from engine.models.config import ModelConfig
from kernels.kv_pool import KVLayout, KVPool

logger = logging.getLogger(__name__)

MODEST_BYTES = 1 << 30
CPU_SHARE = 0.25
UNKNOWN_FREE_MEMORY = 4 << 30
CONTROL_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class KVCacheSize:
    """How many blocks of how many bytes, and in one line why."""

    num_blocks: int
    bytes_per_block: int
    reason: str


def make_layout(model: ModelConfig, block_size: int, dtype: torch.dtype) -> KVLayout:
    """How a model's keys and values lie in blocks of numbers of `dtype`."""
    return KVLayout(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        block_size=block_size,
        head_dim=model.head_dim,
        dtype=dtype,
    )


def choose_size(
    config: EngineConfig, token_bytes: int, max_model_len: int, gpu_budget: tuple[int, str] | None
) -> KVCacheSize:
    """The pool's size by the rule above; `gpu_budget` is what a GPU has, and why.

    When not even one block fits: raises ConfigError where the memory was asked for, else ModelLoadError.
    """
    block_bytes = token_bytes * config.block_size
    if config.num_blocks is not None:
        size = KVCacheSize(config.num_blocks, block_bytes, f"--num-blocks {config.num_blocks}")
    else:
        num_bytes, reason = _memory(config, token_bytes, max_model_len, gpu_budget)
        size = KVCacheSize(num_bytes // block_bytes, block_bytes, reason)
    if size.num_blocks < 1 and config.kv_cache_memory is not None:
        allowed = f"at least {ByteSize(block_bytes)}: a KV block of {config.block_size} tokens takes so many"
        raise ConfigError("--kv-cache-memory", ByteSize(config.kv_cache_memory), allowed)
    if size.num_blocks < 1:
        raise ModelLoadError(
            f"a KV block of {config.block_size} tokens takes {block_bytes} bytes, which does not fit: {size.reason}"
        )
    if size.num_blocks * config.block_size < max_model_len:
        logger.warning(
            "the KV pool holds %d tokens, less than --max-model-len %d",
            size.num_blocks * config.block_size,
            max_model_len,
        )
    return size


def allocate(layout: KVLayout, size: KVCacheSize, device: torch.device) -> KVPool:
    """The pool. Raises ModelLoadError."""
    try:
        return layout.allocate(size.num_blocks, device)
    except (
        RuntimeError
    ) as error:  # torch.OutOfMemoryError is one, the CPU's allocator raises another
        raise ModelLoadError(
            f"{size.num_blocks} KV blocks need {size.num_blocks * size.bytes_per_block} bytes, which cannot "
            f"be had ({size.reason}); use a smaller --num-blocks or --kv-cache-memory"
        ) from error


def _memory(
    config: EngineConfig, token_bytes: int, max_model_len: int, gpu_budget: tuple[int, str] | None
) -> tuple[int, str]:
    if config.kv_cache_memory is not None:
        return config.kv_cache_memory, f"--kv-cache-memory {ByteSize(config.kv_cache_memory)}"
    one = max_model_len * token_bytes
    # Whole blocks: a sequence's last one need not be full.
    most = config.max_num_seqs * (one + token_bytes * config.block_size)
    if gpu_budget is not None:
        num_bytes = min(gpu_budget[0], most)
        return num_bytes, f"there are {gpu_budget[1]}"
    free = free_memory()
    num_bytes = min(int(free * CPU_SHARE), most, max(MODEST_BYTES, one))
    return num_bytes, f"chosen from {mib(free)} of free memory"


def free_memory() -> int:
    """Bytes this process may still take, by the system and by its control group."""
    free = [UNKNOWN_FREE_MEMORY]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        free = [int(fields["MemAvailable"].split()[0]) * 1024]
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2]
    limit, used = CONTROL_GROUP / "memory.max", CONTROL_GROUP / "memory.current"
    if limit.is_file() and (text := limit.read_text().strip()) != "max":
        free.append(max(0, int(text) - int(used.read_text())))
    return min(free)
