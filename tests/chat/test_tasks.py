"""Work that is finished once begun."""

import asyncio
from collections.abc import Callable

import pytest

from chat.errors import ShuttingDownError
from chat.patience import Patience
from chat.tasks import Tasks, in_portions


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


@pytest.mark.parametrize("is_last", [False, True])
async def test_work_in_portions_ends_before_the_next_one_if_there_is_one(is_last: bool) -> None:
    tasks, in_portion, may_end = Tasks(), asyncio.Event(), asyncio.Event()

    async def work(go_on: Callable[[], None]) -> str:
        go_on()
        in_portion.set()
        await may_end.wait()
        if not is_last:
            go_on()
        return "done"

    asked = asyncio.create_task(tasks.finish(in_portions(work)))
    await in_portion.wait()
    closing = asyncio.create_task(tasks.close(Patience(), 0))
    await asyncio.sleep(0.01)
    assert not closing.done()
    may_end.set()
    await closing
    if is_last:
        assert await asked == "done"
    else:
        with pytest.raises(ShuttingDownError):
            await asked
