"""Backends under test. Without a GPU, Triton's kernels run in its interpreter."""

import pytest
import torch

from kernels.ops import KernelBackend, select_backend


@pytest.fixture(scope="session", params=["cpu", "triton"])
def backend(request: pytest.FixtureRequest) -> KernelBackend:
    return select_backend(request.param, device_of(request.param))


@pytest.fixture
def device(backend: KernelBackend) -> torch.device:
    return device_of(backend.name)


def device_of(backend_name: str) -> torch.device:
    """Where a backend is tested."""
    on_gpu = backend_name == "triton" and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu")
