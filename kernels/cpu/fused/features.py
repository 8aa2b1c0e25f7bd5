"""What this machine offers: instruction sets that the fused step is built for, and how many threads make sense."""

import os
import platform
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

INSTRUCTION_SETS: Mapping[str, tuple[str, ...]] = {
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
}
"""Sets that the step can be built for, the fastest first, and the features (LLVM's names) that each needs."""


@cache
def cpu_features() -> frozenset[str]:
    """LLVM's names of what the processor and the system offer; empty off x86-64 Linux."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return frozenset()
    import llvmlite.binding

    features = llvmlite.binding.get_host_cpu_features()
    return frozenset(name for name, is_there in features.items() if is_there)


def missing_features(instruction_set: str, features: Collection[str]) -> tuple[str, ...]:
    """Which of the instructions that a set needs are not there."""
    return tuple(name for name in INSTRUCTION_SETS[instruction_set] if name not in features)


def best_instruction_set(features: Collection[str]) -> str:
    """The fastest set that nothing is missing for; the last one where all lack something."""
    fitting = (name for name in INSTRUCTION_SETS if not missing_features(name, features))
    return next(fitting, list(INSTRUCTION_SETS)[-1])


def num_physical_cores() -> int:
    """Cores that this process may run on, threads of one core counted once, limited by a control group's quota."""
    allowed = os.sched_getaffinity(0)
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota(len(cores))))


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text()
    except OSError:
        return str(cpu)


def _quota(otherwise: int) -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return otherwise
    return otherwise if quota == "max" else -(-int(quota) // int(period))
