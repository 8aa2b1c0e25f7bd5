"""The topics of /ws/chat that show the engine: stats, requests and the block map.

Each is polled once for all clients (`SharedPoll`), at the topic's own rate, and only while somebody looks; a frame is built
once however many it goes to.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from api.documents import OWNER_NUMBERS, Documents
from api.frames import frame_text
from api.shared_poll import SharedPoll
from engine.stats import BlockCells

STATS_INTERVAL_S = 0.5
REQUESTS_INTERVAL_S = 0.5
BLOCKS_INTERVAL_S = 0.25
RECENT_SHOWN = 20


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
