"""What a person sets, once and frozen (`EngineConfig`), and what start-up computes from it (`SchedulerConfig`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from engine.errors import ConfigError

DType = Literal["auto", "float32", "bfloat16", "float16"]
AttentionBackend = Literal["auto", "triton", "cpu", "reference"]
Quantization = Literal["auto", "none"]
SchedulingPolicy = Literal["fcfs", "priority"]


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
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    dtype: DType = "auto"
    kv_cache_dtype: DType = "auto"
    quantization: Quantization = "auto"
    attention_backend: AttentionBackend = "auto"
    enable_prefix_caching: bool = True
    scheduling_policy: SchedulingPolicy = "fcfs"
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_range("--block-size", self.block_size, 1, 1024)
        _check_range("--num-blocks", self.num_blocks, 1, 2**31 - 1)
        _check_range("--kv-cache-memory", self.kv_cache_memory, 1, 2**50)
        _check_range("--max-model-len", self.max_model_len, 1, 2**24)
        _check_range("--max-num-seqs", self.max_num_seqs, 1, 65_536)
        _check_range("--max-num-batched-tokens", self.max_num_batched_tokens, 1, 2**20)
        _check_range("--seed", self.seed, 0, 2**64 - 1)
        _check_choice("--dtype", self.dtype, get_args(DType))
        _check_choice("--kv-cache-dtype", self.kv_cache_dtype, get_args(DType))
        _check_choice("--quantization", self.quantization, get_args(Quantization))
        _check_choice("--attention-backend", self.attention_backend, get_args(AttentionBackend))
        _check_choice("--scheduling-policy", self.scheduling_policy, get_args(SchedulingPolicy))
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                "--max-num-batched-tokens",
                self.max_num_batched_tokens,
                f"at least --max-num-seqs ({self.max_num_seqs}), so that every sequence can decode",
            )


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """What the scheduling half needs to know, resolved: no value is optional here.

    `model_identity` enters every prefix-cache key; `eos_token_ids` end a sequence unless `ignore_eos`;
    `bytes_per_token` is the KV memory of one token over all layers.
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


def _check_range(option: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(option, value, f"a whole number from {low} to {high}")


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(option, value, "one of " + ", ".join(allowed))
