"""Writes `engine_samples`: one row a second while the engine is busy and one before and after, one a minute while it is idle.

So a stretch without rows is one in which no app ran. A row that cannot be stored waits for the next second, and the engine
is only looked at, never asked, so it may be as busy as it likes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from datetime import UTC, datetime

from chat.history import IDLE_INTERVAL_S, Change, last_minute
from chat.packing import pack_counts
from chat.ports import Clock, Engine
from engine.errors import EngineError
from engine.stats import EngineStats
from storage.errors import StorageError
from storage.records import EngineSample
from storage.storage import Storage

logger = logging.getLogger(__name__)

TICKS_PER_THINNING = 3600
MAX_PENDING = 3600


class EngineSampler:
    """`run` samples for ever; `tick` is one second of it."""

    def __init__(self, engine: Engine, storage: Storage, clock: Clock) -> None:
        self._engine = engine
        self._storage = storage
        self._clock = clock
        self._started = 0
        self._lately: deque[EngineSample] = deque(maxlen=61)
        self._last_minute: Change | None = None
        self._pending: deque[EngineSample] = deque(maxlen=MAX_PENDING)
        self._was_busy = False
        self._kept_at = 0

    def last_minute(self) -> Change | None:
        """What happened in the last minute, or since the start; None before there are two samples."""
        if self._last_minute is None:
            self._last_minute = last_minute(self._lately)
        return self._last_minute

    async def run(self) -> None:
        """Sample at every full second; thin old rows and empty the write-ahead log at first and once an hour."""
        while True:
            await self._quietly(self.tidy())
            for _ in range(TICKS_PER_THINNING):
                await asyncio.sleep(1 - self._clock.time() % 1)
                await self._quietly(self.tick())

    async def tick(self) -> None:
        """Store a row when the engine works, or has worked since the last tick, or a minute has passed."""
        try:
            stats = self._engine.stats
        except EngineError:
            return
        now = int(self._clock.time())
        self._started = self._started or now
        sample = sample_of(stats, now, self._started)
        has_stepped = bool(self._lately) and self._lately[-1].num_steps != stats.num_steps
        is_busy = stats.num_running + stats.num_waiting > 0 or has_stepped
        if is_busy and self._lately and self._lately[-1].time > self._kept_at:
            self._pending.append(self._lately[-1])
        self._lately.append(sample)
        self._last_minute = None
        if is_busy or self._was_busy or now - self._kept_at >= IDLE_INTERVAL_S:
            self._pending.append(sample)
            self._kept_at = now
        self._was_busy = is_busy
        await self._store()

    async def tidy(self) -> None:
        """Thin old rows, bound the write-ahead log."""
        await self._storage.samples.thin(datetime.fromtimestamp(self._clock.time(), UTC))
        await self._storage.database.checkpoint()

    async def _store(self) -> None:
        if samples := tuple(self._pending):
            await self._storage.samples.add(*samples)
            for _ in samples:
                self._pending.popleft()

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except StorageError:
            logger.exception("could not write engine samples")


def sample_of(stats: EngineStats, second: int, engine_started: int) -> EngineSample:
    """The row of one second."""
    blocks, counters, counterfactual = stats.blocks, stats.counters, stats.counterfactual_bytes
    times = stats.distributions
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
        engine_started=engine_started,
        blocks_saved=stats.blocks_saved,
        bytes_fragmented=stats.internal_fragmentation.bytes,
        waiting_deferred=stats.waiting_deferred,
        ttft=pack_counts(times.ttft.counts),
        itl=pack_counts(times.itl.counts),
        queue=pack_counts(times.queue.counts),
    )
