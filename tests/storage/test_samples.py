"""`engine_samples`: one row a second, ranges, thinning."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

from storage.records import EngineSample
from storage.samples import DAY, MONTH
from storage.storage import Storage

SAMPLE = EngineSample(
    **{field.name: position for position, field in enumerate(fields(EngineSample))}
)
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
