"""The topics of /ws/chat that show the engine: stats, requests and the block map.

Each is polled once for all clients (`SharedPoll`), at the topic's own rate, and only while somebody looks.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from api.documents import OWNER_NUMBERS, Documents
from api.frames import frame_text
from engine.errors import EngineNotReadyError
from engine.stats import BlockCells

STATS_INTERVAL_S = 0.5
REQUESTS_INTERVAL_S = 0.5
BLOCKS_INTERVAL_S = 0.25
RECENT_SHOWN = 20

T = TypeVar("T")


class SharedPoll(Generic[T]):
    """The result of `fetch`, at most `interval` seconds old, fetched once however many ask."""

    def __init__(self, fetch: Callable[[], Awaitable[T]], interval: float) -> None:
        self._fetch, self.interval = fetch, interval
        self._fetched_at = float("-inf")
        self._lock = asyncio.Lock()

    async def get(self) -> T:
        """Fetch, or take what another client has just fetched."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._fetched_at >= self.interval * 0.9:
                self._value = await self._fetch()
                self._fetched_at = now
            return self._value

    async def changes(self) -> AsyncIterator[T]:
        """The value now and whenever a poll finds another one; waits out the loading of the model."""
        last: T | None = None
        while True:
            try:
                value = await self.get()
            except EngineNotReadyError:
                value = last
            if value is not None and value != last:
                yield value
            last = value
            await asyncio.sleep(self.interval)


def encode_cells(cells: BlockCells) -> bytes:
    """The binary frame of the block map: 16 bits a block, little-endian, state above owner number."""
    states = np.frombuffer(cells.states, np.uint8).astype("<u2")  # [num_blocks]
    owners = np.frombuffer(cells.owners, np.uint64)  # [num_blocks]
    numbers = np.where(owners, (owners - np.uint64(1)) % np.uint64(OWNER_NUMBERS) + np.uint64(1), 0)
    return (states << 14 | numbers.astype("<u2")).tobytes()


class EngineTopics:
    """The three polled topics of one engine, as frames."""

    def __init__(self, documents: Documents) -> None:
        self._documents, self._engine = documents, documents.engine
        self.polls: dict[str, SharedPoll[Any]] = {
            "stats": SharedPoll(self._stats, STATS_INTERVAL_S),
            "requests": SharedPoll(self._requests, REQUESTS_INTERVAL_S),
            "blocks": SharedPoll(self._blocks, BLOCKS_INTERVAL_S),
        }

    async def _stats(self) -> str:
        return frame_text("stats", {"stats": self._documents.stats()})

    async def _requests(self) -> str:
        report = await self._engine.requests_report()
        report = replace(report, recent=report.recent[:RECENT_SHOWN])
        return frame_text("requests", self._documents.requests(report))

    async def _blocks(self) -> bytes:
        return encode_cells(await self._engine.block_cells())
