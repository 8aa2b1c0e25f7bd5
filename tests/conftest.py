"""Fixtures for all rooms: the built-in model's file, and a limit on torch's threads."""

import os
from pathlib import Path

import platformdirs
import pytest

from engine.loader.fetch import SMOLLM2_135M, resolve_model


@pytest.fixture(scope="session")
def builtin_model_path() -> Path:
    """The built-in model's file; fetched once into the data folder that the app uses."""
    data_dir = os.environ.get("PAGETURN_DATA_DIR") or platformdirs.user_data_dir("pageturn")
    return resolve_model(SMOLLM2_135M.name, Path(data_dir)).path


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "2")
