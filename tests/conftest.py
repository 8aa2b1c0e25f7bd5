"""Fixtures for all rooms: the built-in model's file. Sets what torch and Triton read from the environment at their import."""

import os
from pathlib import Path

import platformdirs
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several workers share the cores: threads of one torch that wait for each other would wait for all of them.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.cuda.is_available():
    # Any library may import Triton, and its own functions are interpreted only if this was set by then.
    os.environ["TRITON_INTERPRET"] = "1"

from engine.loader.fetch import SMOLLM2_135M, resolve_model


@pytest.fixture(scope="session")
def builtin_model_path() -> Path:
    """The built-in model's file; fetched once into the data folder that the app uses."""
    data_dir = os.environ.get("PAGETURN_DATA_DIR") or platformdirs.user_data_dir("pageturn")
    return resolve_model(SMOLLM2_135M.name, Path(data_dir)).path
