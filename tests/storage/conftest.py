"""Fixtures of the storage tests: a fresh database file per test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.database import sqlite_url
from storage.storage import Storage


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    return tmp_path / "pageturn.db"


@pytest.fixture
async def storage(database_path: Path) -> AsyncIterator[Storage]:
    storage = Storage(sqlite_url(database_path))
    await storage.open()
    yield storage
    await storage.close()
