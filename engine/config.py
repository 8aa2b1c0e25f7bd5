"""What a person sets, once and frozen (`EngineConfig`), and what start-up computes from it (`SchedulerConfig`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from engine.errors import ConfigError
from engine.rope_scaling import RopeScaling

DType = Literal["auto", "float32", "bfloat16", "float16"]
KVCacheDType = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]
AttentionBackend = Literal["auto", "triton", "cpu", "reference"]
Quantization = Literal["auto", "none", "int8", "int4", "fp8"]
CpuIsa = Literal["auto", "avx512", "avx2", "torch"]
SchedulingPolicy = Literal["fcfs", "priority"]


class ByteSize(int):
    """Bytes, shown as `--kv-cache-memory` takes them: `1GiB`, `512MiB`, `1000`."""

    def __repr__(self) -> str:
        for unit, size in _UNITS.items():
            if self and self % size == 0:
                return f"{self // size}{unit}"
        return int.__repr__(self)

    __str__ = __repr__


_UNITS = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}

RANGES: Mapping[str, tuple[int, int]] = {
    "block_size": (1, 1024),
    "num_blocks": (1, 2**31 - 1),
    "kv_cache_memory": (ByteSize(1), ByteSize(2**50)),
    "max_model_len": (2, 2**24),
    "max_num_seqs": (1, 65_536),
    "max_num_batched_tokens": (1, 2**20),
    "max_waiting": (0, 2**20),
    "num_speculative_tokens": (0, 11),
    "seed": (0, 2**64 - 1),
}
"""Lowest and highest value of each number; the shortest context is a token and the one that follows it."""


def allowed_range(field: str) -> str:
    """What an error says is allowed for a number."""
    low, high = RANGES[field]
    return f"a whole number from {low} to {high}"


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of one engine.

    Sizes are in tokens, blocks or bytes as their names say; None means "computed at start". Raises
    ConfigError naming the command-line option.
    """

    model_path: Path
    model_name: str
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory: int | None = None
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    rope_scaling: RopeScaling | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    dtype: DType = "auto"
    kv_cache_dtype: KVCacheDType = "auto"
    quantization: Quantization = "auto"
    cpu_isa: CpuIsa = "auto"
    attention_backend: AttentionBackend = "auto"
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    scheduling_policy: SchedulingPolicy = "fcfs"
    max_waiting: int = 1024
    num_speculative_tokens: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for field in RANGES:
            _check_range(field, getattr(self, field))
        _check_share("--gpu-memory-utilization", self.gpu_memory_utilization)
        _check_choice("--dtype", self.dtype, get_args(DType))
        _check_choice("--kv-cache-dtype", self.kv_cache_dtype, get_args(KVCacheDType))
        _check_choice("--quantization", self.quantization, get_args(Quantization))
        _check_choice("--cpu-isa", self.cpu_isa, get_args(CpuIsa))
        _check_choice("--attention-backend", self.attention_backend, get_args(AttentionBackend))
        _check_choice("--scheduling-policy", self.scheduling_policy, get_args(SchedulingPolicy))
        self._check_together()

    def _check_together(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                "--max-num-batched-tokens",
                self.max_num_batched_tokens,
                f"at least --max-num-seqs ({self.max_num_seqs}), so that every sequence can decode",
            )
        if self.num_blocks is not None and self.kv_cache_memory is not None:
            raise ConfigError(
                "--kv-cache-memory",
                ByteSize(self.kv_cache_memory),
                f"not beside --num-blocks ({self.num_blocks}), which sets the pool's size too",
            )
        if self.num_blocks == self.block_size == 1:
            raise ConfigError(
                "--num-blocks",
                self.num_blocks,
                "at least 2 of --block-size 1: a token needs room for the one that follows it",
            )


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """What the scheduling half needs to know, resolved: no value is optional here.

    `model_identity` enters every prefix-cache key; `eos_token_ids` end a sequence unless `ignore_eos`;
    `bytes_per_token` is the KV memory of one token over all layers; `num_speculative_tokens` are guessed ahead at most.
    """

    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    scheduling_policy: SchedulingPolicy
    model_identity: str
    eos_token_ids: frozenset[int]
    bytes_per_token: int
    num_speculative_tokens: int


def _check_range(field: str, value: int | None) -> None:
    low, high = RANGES[field]
    if value is not None and not low <= value <= high:
        option = "--" + field.replace("_", "-")
        raise ConfigError(option, type(low)(value), allowed_range(field))


def _check_share(option: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(option, value, "a number above 0, 1 at most")


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(option, value, "one of " + ", ".join(allowed))
