"""What this machine offers: the instructions that the fused step needs, and how many threads make sense."""

import os
import platform
import sys
from functools import cache
from pathlib import Path

NEEDED_FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "f16c")


@cache
def cpu_features() -> frozenset[str]:
    """LLVM's names of what the processor and the system offer; empty off x86-64 Linux."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return frozenset()
    import llvmlite.binding

    features = llvmlite.binding.get_host_cpu_features()
    return frozenset(name for name, is_there in features.items() if is_there)


def missing_features(features: frozenset[str]) -> tuple[str, ...]:
    """Which of the needed instructions are not there."""
    return tuple(name for name in NEEDED_FEATURES if name not in features)


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
