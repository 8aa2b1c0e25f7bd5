"""What samples say of the past: differences of totals, quantiles of what came between, gaps."""

import asyncio
from dataclasses import fields, replace
from typing import Any

import pytest

from chat.history import MAX_POINTS, HistoryPoint, HistoryReader
from chat.packing import pack_counts
from engine.distributions import Recorder
from storage.records import EngineSample
from storage.storage import Storage
from tests.chat.fakes import FakeClock

START = 1_000_000
VALUES: dict[str, Any] = {
    field.name: b"" if field.name in ("ttft", "itl", "queue") else 0
    for field in fields(EngineSample)
}
BASE = replace(
    EngineSample(**VALUES),
    blocks_total=100,
    block_size=16,
    tokens_capacity=1600,
    engine_started=START - 1000,
)


@pytest.fixture
def history(storage: Storage, clock: FakeClock) -> HistoryReader:
    return HistoryReader(storage.samples, clock)


async def points(history: HistoryReader, start: int, end: int) -> tuple[HistoryPoint, ...]:
    return (await history.between(start, end)).points


async def test_rates_are_differences_of_totals(history: HistoryReader, storage: Storage) -> None:
    await storage.samples.add(
        replace(BASE, time=START, generated_tokens=100, prompt_tokens=10, preemptions=1),
        replace(BASE, time=START + 1, generated_tokens=130, prompt_tokens=10, preemptions=3),
        replace(BASE, time=START + 4, generated_tokens=160, prompt_tokens=70, preemptions=3),
    )
    first, second, third = await points(history, START, START + 10)
    assert first.change.output_tokens_per_second == 100 / 1000
    assert (second.change.output_tokens_per_second, second.change.preemptions) == (30, 2)
    assert (third.change.output_tokens_per_second, third.change.prompt_tokens_per_second) == (
        10,
        20,
    )
    assert third.change.hit_rate is None


async def test_gauges_are_means_and_the_point_before_the_range_counts(
    history: HistoryReader, storage: Storage
) -> None:
    for second, running in enumerate((9, 1, 2, 6, 3)):
        sample = replace(BASE, time=START + second - 1, num_running=running, tokens_stored=160)
        gauges: dict[str, Any] = {
            "blocks_private": 10 * running,
            "blocks_shared": 5,
            "generated_tokens": 7 * second,
        }
        await storage.samples.add(replace(sample, **gauges))
    only, *rest = await points(history, START, START + 2 * MAX_POINTS)
    assert (only.num_running, only.blocks_in_use, only.utilisation) == (1.5, 20.0, 0.2)
    assert only.token_utilisation == 0.1
    assert only.change.output_tokens_per_second == 7
    assert [point.num_running for point in rest] == [4.5]


async def test_quantiles_are_of_what_came_between(history: HistoryReader, storage: Storage) -> None:
    itl, rows = Recorder(), []
    for second, value in enumerate((1.0, 0.02, 0.02)):
        for _ in range(40):
            itl.add(value)
        packed = pack_counts(itl.picture().counts)
        rows.append(
            replace(
                BASE,
                time=START + second,
                itl=packed,
                prefix_queries=10 * second,
                prefix_hits=4 * second,
            )
        )
    await storage.samples.add(*rows)
    _, second, _ = await points(history, START, START + 10)
    assert second.change.itl_p50_ms == pytest.approx(20, rel=0.26)
    assert second.change.itl_p95_ms == pytest.approx(20, rel=0.26)
    assert second.change.ttft_p50_ms is None
    assert second.change.hit_rate == 0.4


async def test_a_stop_and_a_restart_are_gaps(history: HistoryReader, storage: Storage) -> None:
    again: dict[str, Any] = {"engine_started": START + 200, "generated_tokens": 50}
    await storage.samples.add(
        *(replace(BASE, time=START + second, generated_tokens=900) for second in (0, 60, 120)),
        *(replace(BASE, time=START + second, **again) for second in (210, 500)),
    )
    found = await points(history, START, START + 600)
    assert [(p.time - START, p.after_gap) for p in found] == [
        (0, True),
        (60, False),
        (120, False),
        (210, True),
        (500, True),
    ]
    assert found[3].change.output_tokens_per_second == 5


async def test_no_range_has_too_many_points(
    history: HistoryReader, storage: Storage, clock: FakeClock
) -> None:
    await storage.samples.add(*(replace(BASE, time=START + i) for i in range(900)))
    clock.advance(900)
    for seconds, step in ((900, 2), (86_400, 120), (30 * 86_400, 3600), (700, 1)):
        told = await history.last(seconds)
        assert (told.step, len(told.points) <= MAX_POINTS) == (step, True)
        assert told.end - told.start == seconds


async def test_what_is_new_since_a_point_completes_what_was_known(
    history: HistoryReader, storage: Storage, clock: FakeClock
) -> None:
    now = int(clock.time())
    itl, seconds = Recorder(), (*range(-40, -20), -15, *range(-9, 1))
    for number, second in enumerate(seconds):
        itl.add(0.01 * number)
        packed = pack_counts(itl.picture().counts)
        sample = replace(BASE, time=now + second, num_running=number, itl=packed)
        await storage.samples.add(replace(sample, generated_tokens=3 * number))
    whole = await history.last(900)
    for known in whole.points:
        new = await history.last(900, known.time)
        assert known.time - 1 <= new.since <= known.time
        kept = tuple(point for point in whole.points if point.time < new.since)
        assert kept + new.points == whole.points
        assert len(new.points) == len(whole.points) - len(kept)
    assert (await history.last(900, 5)).since == whole.start


async def test_the_loop_goes_on_while_points_are_worked_out(
    history: HistoryReader, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.samples.add(replace(BASE, time=START))
    loop = asyncio.get_running_loop()
    seen: list[bool] = []

    def points(*_: object) -> tuple[HistoryPoint, ...]:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(5)
        seen.append(True)
        return ()

    monkeypatch.setattr("chat.history._points", points)
    await history.between(START, START + 10)
    assert seen == [True]
