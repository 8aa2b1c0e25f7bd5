"""Engine samples: a row per busy second and around them, one a minute when idle; none is lost."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest

from chat.sampler import EngineSampler, sample_of
from engine.errors import EngineNotReadyError
from engine.stats import (
    BlockCounts,
    CounterfactualBytes,
    Counters,
    EngineStats,
    InternalFragmentation,
)
from storage.errors import StorageError
from storage.records import EngineSample
from storage.storage import Storage
from tests.chat.fakes import FakeClock

IDLE = EngineStats(
    time=0.0,
    num_steps=7,
    blocks=BlockCounts(100, 1, 2, 3, 94, 16),
    tokens_capacity=1600,
    tokens_stored=40,
    num_running=0,
    num_waiting=0,
    waiting_capacity=0,
    waiting_budget=0,
    counters=Counters(11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21),
    counterfactual_bytes=CounterfactualBytes(21, 22, 23, 24),
    counterfactual_bytes_ended=CounterfactualBytes(31, 32, 33, 34),
    internal_fragmentation=InternalFragmentation(41, 0.5),
)


class StatsOnly:
    """An engine of which only `stats` is asked."""

    def __init__(self) -> None:
        self.current: EngineStats | None = None

    @property
    def stats(self) -> EngineStats:
        if self.current is None:
            raise EngineNotReadyError("loading")
        return self.current


@pytest.fixture
def engine() -> StatsOnly:
    return StatsOnly()


@pytest.fixture
def sampler(engine: StatsOnly, storage: Storage, clock: FakeClock) -> EngineSampler:
    return EngineSampler(engine, storage, clock)  # pyright: ignore[reportArgumentType]


async def stored(storage: Storage, clock: FakeClock) -> list[tuple[int, int]]:
    start = datetime.fromtimestamp(0, UTC)
    rows = await storage.samples.between(start, start + timedelta(days=30))
    return [(row.time - 1_000_000, row.num_running) for row in rows]


async def test_busy_seconds_and_those_around_them_are_stored(
    sampler: EngineSampler, engine: StatsOnly, storage: Storage, clock: FakeClock
) -> None:
    busy = replace(IDLE, num_running=2)
    waiting = replace(IDLE, num_waiting=1)
    for stats in (None, IDLE, IDLE, busy, waiting, IDLE, IDLE, busy, IDLE, IDLE):
        engine.current = stats
        await sampler.tick()
        clock.advance(1)
    assert await stored(storage, clock) == [
        *((1, 0), (2, 0), (3, 2), (4, 0)),
        *((5, 0), (6, 0), (7, 2), (8, 0)),
    ]


async def test_work_that_begins_and_ends_between_two_ticks_is_seen(
    sampler: EngineSampler, engine: StatsOnly, storage: Storage, clock: FakeClock
) -> None:
    for stats in (IDLE, replace(IDLE, num_steps=9), replace(IDLE, num_steps=9)):
        engine.current = stats
        await sampler.tick()
        clock.advance(1)
    assert await stored(storage, clock) == [(0, 0), (1, 0), (2, 0)]


async def test_an_idle_engine_leaves_a_row_a_minute(
    sampler: EngineSampler, engine: StatsOnly, storage: Storage, clock: FakeClock
) -> None:
    engine.current = IDLE
    for _ in range(150):
        await sampler.tick()
        clock.advance(1)
    assert await stored(storage, clock) == [(0, 0), (60, 0), (120, 0)]


async def test_rows_that_could_not_be_stored_are_stored_later(
    sampler: EngineSampler,
    engine: StatsOnly,
    storage: Storage,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*samples: EngineSample) -> None:
        raise StorageError("the disk is full")

    engine.current = replace(IDLE, num_running=2)
    with monkeypatch.context() as patch:
        patch.setattr(storage.samples, "add", refuse)
        for _ in range(3):
            with pytest.raises(StorageError):
                await sampler.tick()
            clock.advance(1)
    await sampler.tick()
    await sampler.tick()
    assert await stored(storage, clock) == [(0, 2), (1, 2), (2, 2), (3, 2)]


async def test_the_last_minute_is_told(
    sampler: EngineSampler, engine: StatsOnly, clock: FakeClock
) -> None:
    assert sampler.last_minute() is None
    for second in range(100):
        engine.current = replace(IDLE, counters=Counters(generated_tokens=second**2))
        await sampler.tick()
        clock.advance(1)
    told = sampler.last_minute()
    assert told is not None
    assert told.output_tokens_per_second == (99**2 - 39**2) / 60


async def test_tidy_thins_old_rows(
    sampler: EngineSampler, storage: Storage, clock: FakeClock
) -> None:
    for second in range(1_000_020, 1_000_025):
        await storage.samples.add(sample_of(IDLE, second, 5))
    clock.advance(2 * 86_400)
    await sampler.tidy()
    assert await stored(storage, clock) == [(24, 0)]


def test_a_sample_holds_all_of_the_stats() -> None:
    sample = sample_of(
        replace(
            IDLE, num_running=4, num_waiting=5, waiting_budget=6, waiting_deferred=7, blocks_saved=8
        ),
        99,
        50,
    )
    values = {field.name: getattr(sample, field.name) for field in fields(EngineSample)}
    assert values == {
        "time": 99,
        "num_steps": 7,
        "blocks_total": 100,
        "blocks_private": 1,
        "blocks_shared": 2,
        "blocks_cached": 3,
        "blocks_free": 94,
        "block_size": 16,
        "tokens_capacity": 1600,
        "tokens_stored": 40,
        "num_running": 4,
        "num_waiting": 5,
        "waiting_capacity": 0,
        "waiting_budget": 6,
        "preemptions": 11,
        "forks": 12,
        "cow_copies": 13,
        "prefix_queries": 14,
        "prefix_hits": 15,
        "generated_tokens": 16,
        "prompt_tokens": 17,
        "requests": 18,
        "bytes_paged": 21,
        "bytes_max_len": 22,
        "bytes_pow2": 23,
        "bytes_exact": 24,
        "engine_started": 50,
        "blocks_saved": 8,
        "bytes_fragmented": 41,
        "waiting_deferred": 7,
        "ttft": b"",
        "itl": b"",
        "queue": b"",
    }
