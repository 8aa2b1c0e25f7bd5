"""Writes `engine_samples`: one row a second while the engine is busy, and one more when it has gone idle."""

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime

from chat.ports import Clock, Engine
from engine.errors import EngineError
from engine.stats import EngineStats
from storage.errors import StorageError
from storage.records import EngineSample
from storage.storage import Storage

logger = logging.getLogger(__name__)

INTERVAL = 1.0
TICKS_PER_THINNING = 3600


class EngineSampler:
    """`run` samples for ever; `tick` is one second of it."""

    def __init__(self, engine: Engine, storage: Storage, clock: Clock) -> None:
        self._engine = engine
        self._storage = storage
        self._clock = clock
        self._last: EngineStats | None = None
        self._was_busy = False

    async def run(self) -> None:
        """Sample every second; thin old rows and empty the write-ahead log at first and once an hour."""
        while True:
            await self._quietly(self.tidy())
            for _ in range(TICKS_PER_THINNING):
                await asyncio.sleep(INTERVAL)
                await self._quietly(self.tick())

    async def tick(self) -> None:
        """Store a row when the engine works, or has worked since the last tick."""
        try:
            stats = self._engine.stats
        except EngineError:
            return
        last, self._last = self._last, stats
        has_stepped = last is not None and last.num_steps != stats.num_steps
        is_busy = stats.num_running + stats.num_waiting > 0 or has_stepped
        if is_busy or self._was_busy:
            await self._storage.samples.add(sample_of(stats, int(self._clock.time())))
        self._was_busy = is_busy

    async def tidy(self) -> None:
        """Thin old rows, bound the write-ahead log."""
        await self._storage.samples.thin(datetime.fromtimestamp(self._clock.time(), UTC))
        await self._storage.database.checkpoint()

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except StorageError:
            logger.exception("could not write engine samples")


def sample_of(stats: EngineStats, second: int) -> EngineSample:
    """The row of one second."""
    blocks, counters, counterfactual = stats.blocks, stats.counters, stats.counterfactual_bytes
    return EngineSample(
        time=second,
        num_steps=stats.num_steps,
        blocks_total=blocks.total,
        blocks_private=blocks.private,
        blocks_shared=blocks.shared,
        blocks_cached=blocks.cached,
        blocks_free=blocks.free,
        block_size=blocks.block_size,
        tokens_capacity=stats.tokens_capacity,
        tokens_stored=stats.tokens_stored,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        waiting_capacity=stats.waiting_capacity,
        waiting_budget=stats.waiting_budget,
        preemptions=counters.preemptions,
        forks=counters.forks,
        cow_copies=counters.cow_copies,
        prefix_queries=counters.prefix_queries,
        prefix_hits=counters.prefix_hits,
        generated_tokens=counters.generated_tokens,
        prompt_tokens=counters.prompt_tokens,
        requests=counters.requests,
        bytes_paged=counterfactual.paged,
        bytes_max_len=counterfactual.max_len,
        bytes_pow2=counterfactual.pow2,
        bytes_exact=counterfactual.exact,
    )
