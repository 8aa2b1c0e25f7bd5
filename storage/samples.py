"""`engine_samples`: the dashboard's history, one row per busy second, thinned with age.

Rows older than a day are thinned to one a minute, older than a month to one an hour. The last row that an engine left in each
minute or hour stays, so the counters, which are totals, still give exact differences. What took how long is kept for every
second of the last hour, then for the last of each minute: it is most of a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from datetime import datetime

from sqlalchemy import Delete, RowMapping, Select, Update, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database import Database
from storage.models import EngineSampleRow
from storage.records import EngineSample, SampleBucket

HOUR, DAY = 3600, 86_400
MONTH = 30 * DAY
PORTION = 500
"""Rows that one transaction drops at most."""
_THINNING = ((DAY, 60), (MONTH, 3600))
_FIELDS = [field.name for field in fields(EngineSample)]
_COLUMNS = [getattr(EngineSampleRow, name) for name in _FIELDS]
_MEANS = (
    ("blocks_in_use", EngineSampleRow.blocks_private + EngineSampleRow.blocks_shared),
    ("tokens_stored", EngineSampleRow.tokens_stored),
    ("num_running", EngineSampleRow.num_running),
    ("num_waiting", EngineSampleRow.num_waiting),
)


class SampleStore:
    """Verbs on `engine_samples`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, *samples: EngineSample) -> None:
        """Store rows of seconds; a second row of the same second replaces the first."""

        async def work(session: AsyncSession) -> None:
            for sample in samples:
                await session.merge(EngineSampleRow(**asdict(sample)))

        await self._database.write(work)

    async def between(self, start: datetime, end: datetime) -> tuple[EngineSample, ...]:
        """Rows from `start` up to, not including, `end`, oldest first."""
        time = EngineSampleRow.time
        query = (
            select(*_COLUMNS)
            .where(time >= start.timestamp(), time < end.timestamp())
            .order_by(time)
        )

        async def work(session: AsyncSession) -> tuple[EngineSample, ...]:
            rows = await session.execute(query)
            return tuple(EngineSample(**row._mapping) for row in rows)

        return await self._database.read(work)

    async def buckets(self, start: int, end: int, seconds: int) -> tuple[SampleBucket, ...]:
        """Rows from `start` up to `end` (seconds since the epoch) in stretches of `seconds`, oldest first.

        Before the first there is the last row before `start`, if any, from which differences are taken.
        """
        row = EngineSampleRow
        groups = (
            select(
                func.max(row.time).label("last"),
                *(func.avg(mean).label(name) for name, mean in _MEANS),
            )
            .where(row.time >= start, row.time < end)
            .group_by(row.time // seconds, row.engine_started)
            .subquery()
        )
        query = (
            select(*_COLUMNS, *(groups.c[name].label(f"mean_{name}") for name, _ in _MEANS))
            .join(groups, row.time == groups.c.last)
            .order_by(row.time)
        )
        before = select(*_COLUMNS).where(row.time < start).order_by(row.time.desc()).limit(1)

        async def work(session: AsyncSession) -> tuple[SampleBucket, ...]:
            found = [_lone_bucket(r._mapping) for r in await session.execute(before)]
            found += [_bucket(r._mapping) for r in await session.execute(query)]
            return tuple(found)

        return await self._database.read(work)

    async def thin(self, now: datetime) -> int:
        """Drop what age makes superfluous; returns how many rows.

        What that is takes long to find in a full table, so it is looked for without holding up who writes, and dropped in portions.
        """
        second = int(now.timestamp())
        await self._in_portions(_with_durations(second - HOUR), _forget_durations)
        superfluous = [_superfluous(second - age, seconds) for age, seconds in _THINNING]
        return sum([await self._in_portions(query, _drop) for query in superfluous])

    async def _in_portions(
        self, query: Select[int], statement: Callable[[Sequence[int]], Delete | Update]
    ) -> int:
        """Carry out a statement on the rows whose times a query finds; returns how many there were."""

        async def find(session: AsyncSession) -> Sequence[int]:
            return (await session.scalars(query)).all()

        times = await self._database.read(find)
        for first in range(0, len(times), PORTION):
            await self._carry_out(statement(times[first : first + PORTION]))
        return len(times)

    async def _carry_out(self, change: Delete | Update) -> None:
        async def work(session: AsyncSession) -> None:
            await session.execute(change, execution_options={"synchronize_session": False})

        await self._database.write(work)


def _bucket(row: RowMapping) -> SampleBucket:
    means = {name: float(row[f"mean_{name}"]) for name, _ in _MEANS}
    return SampleBucket(EngineSample(**{name: row[name] for name in _FIELDS}), **means)


def _lone_bucket(row: RowMapping) -> SampleBucket:
    sample = EngineSample(**row)
    in_use = sample.blocks_private + sample.blocks_shared
    gauges = (in_use, sample.tokens_stored, sample.num_running, sample.num_waiting)
    return SampleBucket(sample, *map(float, gauges))


def _superfluous(before: int, seconds: int) -> Select[int]:
    """Rows older than `before` that are not the last of their stretch of `seconds`."""
    time = EngineSampleRow.time
    before -= before % seconds
    return select(time).where(time < before, time.not_in(_lasts(before, seconds)))


def _with_durations(before: int) -> Select[int]:
    """Rows older than `before` that tell what took how long and are not the last of their minute."""
    return _superfluous(before, 60).where(EngineSampleRow.ttft.is_not(None))


def _drop(times: Sequence[int]) -> Delete:
    return delete(EngineSampleRow).where(EngineSampleRow.time.in_(times))


def _forget_durations(times: Sequence[int]) -> Update:
    chosen = update(EngineSampleRow).where(EngineSampleRow.time.in_(times))
    return chosen.values(ttft=None, itl=None, queue=None)


def _lasts(before: int, seconds: int) -> Select[int]:
    """The times of the last rows that each engine left in each stretch of `seconds`."""
    time = EngineSampleRow.time
    groups = (time // seconds, EngineSampleRow.engine_started)
    return select(func.max(time)).where(time < before).group_by(*groups)
