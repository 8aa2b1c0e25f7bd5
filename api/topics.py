"""The topics of /ws/chat that show the engine: stats, requests and the block map.

Each is polled once for all clients (`SharedPoll`), at the topic's own rate, and only while somebody looks.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Generic, TypeVar

from api.documents import stats_document
from api.frames import frame_text
from api.surface import Engine
from engine.errors import EngineNotReadyError
from engine.stats import BlockInfo, BlockState

STATS_INTERVAL_S = 0.5
REQUESTS_INTERVAL_S = 0.5
BLOCKS_INTERVAL_S = 0.25
OWNER_NUMBERS = 2**14 - 1

_STATE_BITS = {
    BlockState.FREE: 0,
    BlockState.CACHED: 1,
    BlockState.PRIVATE: 2,
    BlockState.SHARED: 3,
}
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


def encode_blocks(blocks: tuple[BlockInfo, ...]) -> bytes:
    """The binary frame of the block map: 16 bits a block, little-endian, state above owner number."""
    cells = (_STATE_BITS[b.state] << 14 | _owner_number(b) for b in blocks)
    return struct.pack(f"<{len(blocks)}H", *cells)


def _owner_number(block: BlockInfo) -> int:
    return (block.owners[0] - 1) % OWNER_NUMBERS + 1 if block.owners else 0


class EngineTopics:
    """The three polled topics of one engine, as frames."""

    def __init__(self, engine: Engine, generations: Callable[[], Mapping[int, str]]) -> None:
        """`generations` gives the ids of the running generations by the engine's ids of their requests."""
        self._engine, self._generations = engine, generations
        self.polls: dict[str, SharedPoll[Any]] = {
            "stats": SharedPoll(self._stats, STATS_INTERVAL_S),
            "requests": SharedPoll(self._requests, REQUESTS_INTERVAL_S),
            "blocks": SharedPoll(self._blocks, BLOCKS_INTERVAL_S),
        }

    async def _stats(self) -> str:
        return frame_text("stats", {"stats": stats_document(self._engine)})

    async def _requests(self) -> str:
        requests = await self._engine.requests()
        ids = self._generations()
        items = [asdict(each) | {"generation_id": ids.get(each.request_id)} for each in requests]
        return frame_text("requests", {"items": items})

    async def _blocks(self) -> bytes:
        return encode_blocks(await self._engine.block_map())
