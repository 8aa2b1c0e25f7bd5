"""Which runner computes the steps: the fused CPU runner where it can serve, else the torch runner. Chosen once, logged."""

import logging

import torch

from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner, Progress, fused_runner_reason
from engine.loader.model import open_configured
from engine.model_runner import ModelRunner
from kernels.cpu.fused.features import cpu_features

logger = logging.getLogger(__name__)


def load_runner(config: EngineConfig, progress: Progress) -> CpuRunner | ModelRunner:
    """Load the model that `config` names into the fastest runner that serves it. Raises ConfigError, ModelLoadError."""
    progress("opening the model", 0.0)
    reason = _why_not_fused(config)
    if reason is None:
        return CpuRunner.load(config, progress)
    logger.info("the torch runner computes the steps: %s", reason)
    return ModelRunner.load(config, progress)


def _why_not_fused(config: EngineConfig) -> str | None:
    if torch.cuda.is_available():
        return "there is a GPU"
    return fused_runner_reason(config, open_configured(config).config, cpu_features())
