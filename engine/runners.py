"""Which runner computes the steps: the fused CPU runner where it can serve, else the torch runner. Chosen once, logged.

What only the fused runner can do, and was asked for by name, is refused where it cannot serve.
"""

import logging

import torch

from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner, Progress, fused_runner_reason
from engine.errors import ConfigError
from engine.loader.model import open_configured
from engine.model_runner import ModelRunner
from engine.placement import check_numbers
from kernels.cpu.fused.features import cpu_features

ONLY_FUSED = (
    ("cpu_isa", ("avx512", "avx2"), "auto or torch"),
    ("quantization", ("int4",), "auto or none (on a GPU int8 and fp8 too)"),
)
"""Fields, values that ask for the fused runner, and what works with every runner."""
ON_A_CPU_ONLY_FUSED = (
    ("quantization", ("int8",), "auto or none"),
    ("kv_cache_dtype", ("int8",), "auto, float32 or bfloat16"),
)
"""The same of what the kernels of GPUs do too."""

logger = logging.getLogger(__name__)


def load_runner(config: EngineConfig, progress: Progress) -> CpuRunner | ModelRunner:
    """Load the model that `config` names into the fastest runner that serves it. Raises ConfigError, ModelLoadError."""
    check_numbers(config)
    progress("opening the model", None)
    reason = _why_not_fused(config)
    if reason is None:
        return CpuRunner.load(config, progress)
    _refuse_what_needs_it(config, reason)
    logger.info("the torch runner computes the steps: %s", reason)
    return ModelRunner.load(config, progress)


def _why_not_fused(config: EngineConfig) -> str | None:
    if torch.cuda.is_available():
        return "there is a GPU"
    return fused_runner_reason(config, open_configured(config).config, cpu_features())


def _refuse_what_needs_it(config: EngineConfig, reason: str) -> None:
    has_eight_bits = torch.cuda.is_available() or config.attention_backend in (
        "triton",
        "reference",
    )
    for field, values, others in ONLY_FUSED + (() if has_eight_bits else ON_A_CPU_ONLY_FUSED):
        value = getattr(config, field)
        if value in values:
            option = "--" + field.replace("_", "-")
            raise ConfigError(option, value, f"{others} works here: {reason}")
