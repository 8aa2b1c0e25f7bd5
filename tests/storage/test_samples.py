"""`engine_samples`: one row a second, ranges, thinning."""

import sqlite3
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event

from storage.records import EngineSample
from storage.samples import DAY, HOUR, MONTH, PORTION
from storage.storage import Storage

VALUES: dict[str, Any] = {
    field.name: b"\1\2" if field.name in ("ttft", "itl", "queue") else position
    for position, field in enumerate(fields(EngineSample))
}
SAMPLE = EngineSample(**VALUES)
NOW = datetime(2030, 6, 15, 12, tzinfo=UTC)


def at(seconds_ago: float) -> EngineSample:
    return replace(SAMPLE, time=int(NOW.timestamp() - seconds_ago))


async def everything(storage: Storage) -> list[int]:
    rows = await storage.samples.between(NOW - timedelta(days=365), NOW + timedelta(days=1))
    return [row.time for row in rows]


async def test_a_row_comes_back_whole(storage: Storage) -> None:
    sample = replace(at(0), bytes_max_len=2**62)
    await storage.samples.add(sample)
    assert await storage.samples.between(NOW, NOW + timedelta(seconds=1)) == (sample,)


async def test_one_row_per_second_the_later_one(storage: Storage) -> None:
    await storage.samples.add(at(0))
    await storage.samples.add(replace(at(0), num_running=9))
    rows = await storage.samples.between(NOW, NOW + timedelta(seconds=1))
    assert [row.num_running for row in rows] == [9]


async def test_a_range_is_half_open_and_in_order(storage: Storage) -> None:
    for ago in (3, 1, 2, 0):
        await storage.samples.add(at(ago))
    rows = await storage.samples.between(NOW - timedelta(seconds=3), NOW)
    assert [row.time - int(NOW.timestamp()) for row in rows] == [-3, -2, -1]


async def test_thinning_keeps_the_last_of_each_minute_then_of_each_hour(storage: Storage) -> None:
    fresh = [at(ago) for ago in (0, 1, DAY - 60)]
    day_old = [at(DAY + 120 + ago) for ago in (0, 1, 59, 60, 61)]
    month_old = [at(MONTH + 7200 + ago) for ago in (0, 60, 3599, 3600)]
    for sample in (*fresh, *day_old, *month_old):
        await storage.samples.add(sample)
    before = set(await everything(storage))
    dropped = await storage.samples.thin(NOW)
    kept = await everything(storage)
    expected = {s.time for s in fresh}
    for group, seconds in ((day_old, 60), (month_old, 3600)):
        buckets: dict[int, int] = {}
        for sample in group:
            bucket = sample.time // seconds
            buckets[bucket] = max(buckets.get(bucket, 0), sample.time)
        expected |= set(buckets.values())
    assert set(kept) == expected
    assert dropped == len(before) - len(kept) > 0
    assert await storage.samples.thin(NOW) == 0


async def test_buckets_have_their_last_row_means_and_the_row_before(storage: Storage) -> None:
    rows = [(9, 5), (10, 1), (14, 3), (15, 8), (19, 2), (20, 7)]
    await storage.samples.add(
        *(replace(SAMPLE, time=time, num_running=running) for time, running in rows)
    )
    found = await storage.samples.buckets(10, 20, 5)
    assert [(b.last.time, b.last.num_running, b.num_running) for b in found] == [
        (9, 5, 5.0),
        (14, 3, 2.0),
        (19, 2, 5.0),
    ]
    in_use = SAMPLE.blocks_private + SAMPLE.blocks_shared
    assert {bucket.blocks_in_use for bucket in found} == {in_use}


async def test_two_engines_of_one_minute_are_told_apart_and_both_stay(storage: Storage) -> None:
    old = int(NOW.timestamp() - DAY) // 60 * 60 - 600
    rows = [(0, 7), (10, 7), (20, 8), (30, 8)]
    await storage.samples.add(
        *(replace(SAMPLE, time=old + second, engine_started=started) for second, started in rows)
    )
    await storage.samples.thin(NOW)
    found = await storage.samples.buckets(old, old + 60, 60)
    assert [(b.last.time - old, b.last.engine_started) for b in found] == [(10, 7), (30, 8)]


async def test_durations_are_kept_for_the_last_hour_then_by_the_minute(storage: Storage) -> None:
    minute = int(NOW.timestamp()) // 60 * 60
    ages = (3600, 3660, 3661, 3670, 10)
    await storage.samples.add(*(replace(SAMPLE, time=minute - age) for age in ages))
    await storage.samples.thin(NOW)
    rows = await storage.samples.between(NOW - timedelta(hours=2), NOW)
    kept = {minute - row.time: row.ttft is not None for row in rows}
    assert kept == {3600: True, 3660: True, 3661: True, 3670: False, 10: True}
    assert all((row.ttft is None) is (row.itl is None) is (row.queue is None) for row in rows)


async def test_a_year_of_work_day_and_night_stays_under_50_megabytes(
    storage: Storage, database_path: Path
) -> None:
    """Large totals, sixteen buckets of each duration with millions in each."""
    packed = b"\x01\xff\xff\xff\x01" * 16
    durations: dict[str, Any] = dict.fromkeys(("ttft", "itl", "queue"), packed)
    totals: dict[str, Any] = {
        field.name: 2**34 for field in fields(EngineSample) if field.name not in durations
    }
    gauges: dict[str, Any] = dict.fromkeys(
        ("blocks_total", "blocks_private", "block_size", "num_running"), 20_000
    )
    full = EngineSample(**totals | gauges | durations)
    sizes = []
    for start, sample in ((0, full), (10**6, replace(full, ttft=None, itl=None, queue=None))):
        before = database_path.stat().st_size
        await storage.samples.add(*(replace(sample, time=10**9 + start + i) for i in range(1000)))
        await storage.database.checkpoint()
        sizes.append((database_path.stat().st_size - before) / 1000)
    num_full = HOUR + (MONTH - HOUR) / 60 + 365 * 24
    num_plain = DAY - HOUR
    assert num_full * sizes[0] + num_plain * sizes[1] < 50e6


async def test_a_day_of_a_full_table_is_read_by_its_index_and_comes_as_few_rows(
    storage: Storage, database_path: Path
) -> None:
    """A row a second for a day, a row a minute for a month, a row an hour for a year before."""
    end = int(NOW.timestamp())
    ranges = ((end - MONTH - 365 * DAY, end - MONTH, HOUR), (end - MONTH, end - DAY, 60))
    await storage.samples.add(at(-1))
    names = ", ".join(field.name for field in fields(EngineSample) if field.name != "time")
    with closing(sqlite3.connect(database_path)) as connection:
        for start, stop, step in (*ranges, (end - DAY, end, 1)):
            connection.execute(
                f"insert into engine_samples (time, {names}) with recursive seconds (t) as"
                f" (select {start} union all select t + {step} from seconds where t + {step} < {stop})"
                f" select t, {names} from seconds, (select * from engine_samples where time = {end + 1})"
            )
        connection.commit()
    statements: list[tuple[str, Any]] = []
    event.listen(
        storage.database._engine.sync_engine,
        "before_cursor_execute",
        lambda *told: statements.append((told[2], told[3])),
    )
    for start, seconds, most in ((end - DAY, 120, 720), (end - MONTH, 3600, 720)):
        found = await storage.samples.buckets(start, end, seconds)
        assert (found[0].last.time < start, len(found)) == (True, most + 1)
    with closing(sqlite3.connect(database_path)) as connection:
        for statement, values in statements:
            if "engine_samples" in statement:
                plan = connection.execute(f"explain query plan {statement}", values).fetchall()
                told = [row[3] for row in plan if "engine_samples" in row[3]]
                assert told
                assert all(step.startswith("SEARCH") for step in told), told


async def test_thinning_holds_nobody_up_for_long(storage: Storage) -> None:
    """What is superfluous is found by readers; a transaction that writes takes so many rows at most."""
    ages = range(DAY + 300, DAY + 300 + 2 * PORTION)
    await storage.samples.add(*(at(age) for age in ages))
    statements: list[str] = []
    rows: list[int] = []

    def note(_: object, cursor: Any, statement: str, *__: object) -> None:
        if statement.startswith(("DELETE", "UPDATE")):
            statements.append(statement)
            rows.append(cursor.rowcount)

    event.listen(storage.database._engine.sync_engine, "after_cursor_execute", note)
    minutes = {int(NOW.timestamp() - age) // 60 for age in ages}
    assert await storage.samples.thin(NOW) == sum(rows[2:]) == len(ages) - len(minutes)
    assert rows[:2] == [PORTION, sum(rows[2:]) - PORTION]
    assert max(rows) == PORTION
    assert not any("SELECT" in statement for statement in statements)
