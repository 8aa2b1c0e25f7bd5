"""Where the model runs and in which numbers, and how many threads torch uses for it."""

import os
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from kernels.cpu.fused.features import (
    best_instruction_set,
    cpu_features,
    missing_features,
    num_physical_cores,
)

KV_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}

WEIGHT_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}

NEED_A_GPU = (
    ("quantization", "fp8", "auto or none", "auto, int8, int4 or none"),
    ("kv_cache_dtype", "fp8", "auto, float32 or bfloat16", "auto, float32, bfloat16 or int8"),
)
"""Fields, values that need a GPU's kernels, and what works without one: in any case, and where the CPU has the compiled step."""
NOT_ON_A_CPU = (
    ("dtype", "float16", "auto, float32 or bfloat16"),
    ("kv_cache_dtype", "float16", "auto, float32 or bfloat16"),
)


@dataclass(frozen=True)
class Placement:
    """Device and numbers of the model and of KV memory; `packed` keeps few-bit weights as they are stored.

    `weight_dtype` is that of matrices in eight bits, None where they are floats.
    """

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    packed: bool
    weight_dtype: torch.dtype | None = None


def check_numbers(config: EngineConfig) -> None:
    """Refuse numbers that nothing here computes in, before anything is loaded. Raises ConfigError."""
    if torch.cuda.is_available():
        return
    # Named, these kernels run on a CPU too, slowly.
    has_kernels = config.attention_backend in ("triton", "reference")
    features = cpu_features()
    is_compiled = not missing_features(best_instruction_set(features), features)
    rules = [(*rule, "on a CPU") for rule in NOT_ON_A_CPU]
    rules += [
        (field, value, more if is_compiled else others, "here: fp8 needs a GPU")
        for field, value, others, more in NEED_A_GPU
        if not has_kernels
    ]
    for field, value, others, where in rules:
        if getattr(config, field) == value:
            option = "--" + field.replace("_", "-")
            raise ConfigError(option, value, f"{others} works {where}")


def choose_placement(config: EngineConfig) -> Placement:
    """Device and numbers: a GPU where there is one; `auto` is the fastest good path there. Raises ConfigError."""
    check_numbers(config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_cpu = device.type == "cpu"
    fast = torch.float32 if on_cpu and not _has_wide_vectors() else torch.bfloat16
    dtype = fast if config.dtype == "auto" else getattr(torch, config.dtype)
    kv_dtype = KV_DTYPES.get(config.kv_cache_dtype, dtype)
    packed = on_cpu and dtype == torch.bfloat16 and config.quantization == "auto"
    return Placement(device, dtype, kv_dtype, packed, WEIGHT_DTYPES.get(config.quantization))


def _has_wide_vectors() -> bool:
    """Whether products with packed weights and with bfloat16 are quick on this CPU."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def use_physical_cores() -> None:
    """One thread per core: two on one core wait for each other. OMP_NUM_THREADS has the last word."""
    if "OMP_NUM_THREADS" not in os.environ and hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(num_physical_cores())
