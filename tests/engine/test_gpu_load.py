"""The GPU's load, from a driver that is played here."""

import pytest
import torch
from pynvml import NVML_ERROR_NOT_SUPPORTED, NVMLError

from engine.gpu_load import GpuLoad, gpu_load

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is idle, one that is busy."""
    monkeypatch.setattr(torch.cuda, "get_device_name", {"cuda:0": "A", "cuda:1": "B"}.get)
    monkeypatch.setattr(torch.cuda, "utilization", {"cuda:0": 0, "cuda:1": 87}.get)
    sizes = {"cuda:0": (60 * GIB, 80 * GIB), "cuda:1": (5 * GIB, 24 * GIB)}
    monkeypatch.setattr(torch.cuda, "mem_get_info", sizes.get)


def test_the_engines_own_gpu_is_told() -> None:
    assert gpu_load("cuda:0") == GpuLoad("A", 0.0, 20 * GIB, 80 * GIB)
    assert gpu_load("cuda:1") == GpuLoad("B", 0.87, 19 * GIB, 24 * GIB)


def test_a_cpu_has_none() -> None:
    assert gpu_load("cpu") is None


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("no library"),
        RuntimeError("no driver"),
        NVMLError(NVML_ERROR_NOT_SUPPORTED),
    ],
)
def test_a_driver_that_does_not_tell_leaves_its_memory(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(device: str) -> int:
        raise error

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    assert gpu_load("cuda:0") == GpuLoad("A", None, 20 * GIB, 80 * GIB)
