"""The line about the machine that every figure needs beside it."""

import platform
from pathlib import Path

import torch

from kernels.cpu.fused.features import num_physical_cores


def describe() -> str:
    """Processor, cores, torch, and how busy the machine was in the last minute."""
    load = Path("/proc/loadavg")
    busy = f", load {load.read_text().split()[0]}" if load.exists() else ""
    return f"{_processor()}, {num_physical_cores()} cores, torch {torch.__version__}{busy}"


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
