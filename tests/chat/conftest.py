"""Fixtures of the chat tests: a database file, hand-moved time and engine, a service on top."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chat.service import ChatService
from storage.database import sqlite_url
from storage.storage import Storage
from tests.chat.fakes import FakeClock, ManualEngine


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    storage = Storage(sqlite_url(tmp_path / "pageturn.db"))
    await storage.open()
    yield storage
    await storage.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def engine() -> ManualEngine:
    return ManualEngine()


@pytest.fixture
async def chat(
    engine: ManualEngine, storage: Storage, clock: FakeClock
) -> AsyncIterator[ChatService]:
    chat = ChatService(engine, storage, orphan_timeout=60.0, clock=clock)
    await chat.start()
    yield chat
    await chat.shutdown(0.0)
