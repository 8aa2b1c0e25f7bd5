"""`engine_samples`: the dashboard's history, one row per busy second, thinned with age.

Rows older than a day are thinned to one a minute, older than a month to one an hour. The last row of each minute or
hour stays, so the counters, which are totals, still give exact differences.
"""

from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, cast

from sqlalchemy import CursorResult, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database import Database
from storage.models import EngineSampleRow
from storage.records import EngineSample

DAY = 86_400
MONTH = 30 * DAY
_THINNING = ((DAY, 60), (MONTH, 3600))
_COLUMNS = [getattr(EngineSampleRow, field.name) for field in fields(EngineSample)]


class SampleStore:
    """Verbs on `engine_samples`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, sample: EngineSample) -> None:
        """Store a second's row; a second row of the same second replaces the first."""

        async def work(session: AsyncSession) -> None:
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

    async def thin(self, now: datetime) -> int:
        """Drop what age makes superfluous; returns how many rows."""

        async def work(session: AsyncSession) -> int:
            return sum(
                [
                    await _thin(session, int(now.timestamp()) - age, seconds)
                    for age, seconds in _THINNING
                ]
            )

        return await self._database.write(work)


async def _thin(session: AsyncSession, before: int, seconds: int) -> int:
    """Keep the last row of every `seconds` among the rows older than `before`."""
    time = EngineSampleRow.time
    before -= before % seconds
    kept = select(func.max(time)).where(time < before).group_by(time // seconds)
    statement = delete(EngineSampleRow).where(time < before, time.not_in(kept))
    result = await session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount
