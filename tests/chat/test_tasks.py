"""Work that is finished once begun."""

import asyncio

import pytest

from chat.errors import ShuttingDownError
from chat.patience import Patience
from chat.tasks import Tasks


async def test_work_that_is_cancelled_at_the_end_is_told_as_that() -> None:
    tasks = Tasks()
    asked = asyncio.create_task(tasks.finish(asyncio.sleep(60)))
    await asyncio.sleep(0)
    await tasks.close(Patience(), 0)
    with pytest.raises(ShuttingDownError):
        await asked


async def test_work_goes_on_when_who_asked_is_cancelled() -> None:
    tasks, go, done = Tasks(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    asked = asyncio.create_task(tasks.finish(work()))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    go.set()
    await asyncio.wait_for(done.wait(), 5)
