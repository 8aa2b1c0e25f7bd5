"""Waiting that can be cut short."""

import asyncio

from chat.patience import Patience

LONG_S = 600.0


async def forever() -> None:
    await asyncio.Event().wait()


async def ended(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_it_waits_for_all_and_no_longer() -> None:
    gate = asyncio.Event()
    first, second = asyncio.create_task(gate.wait()), asyncio.create_task(gate.wait())
    waiting = asyncio.create_task(Patience().wait({first, second}, LONG_S))
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    async with asyncio.timeout(10):
        assert await waiting == set()


async def test_what_takes_too_long_is_told_and_left_running() -> None:
    slow = asyncio.create_task(forever())
    assert await Patience().wait({slow}, 0.0) == {slow}
    assert not slow.cancelled()
    await ended(slow)


async def test_it_ends_at_once_when_told_to_and_stays_so() -> None:
    patience = Patience()
    slow = asyncio.create_task(forever())
    waiting = asyncio.create_task(patience.wait({slow}, LONG_S))
    await asyncio.sleep(0)
    patience.end()
    async with asyncio.timeout(10):
        assert await waiting == {slow}
        assert await patience.wait({slow}, LONG_S) == {slow}
    await ended(slow)


async def test_nothing_is_not_waited_for() -> None:
    assert await Patience().wait([], LONG_S) == set()
