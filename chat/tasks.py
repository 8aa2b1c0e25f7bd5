"""Work that is finished once begun, also when the socket that asked for it is gone."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from chat.errors import ShuttingDownError
from chat.patience import Patience

Result = TypeVar("Result")
CLOSED = "the server is shutting down"


async def in_portions(work: Callable[[Callable[[], None]], Coroutine[Any, Any, Result]]) -> Result:
    """The result of long work that calls what it is given between its portions.

    Cancelled, it ends there with ShuttingDownError; when no portion is left it ends in order, and this gives its result.
    """
    is_cancelled = False

    def go_on() -> None:
        if is_cancelled:
            raise ShuttingDownError(CLOSED)

    task = asyncio.create_task(work(go_on))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        is_cancelled = True
        return await task


class Tasks:
    """Runs coroutines as tasks that a cancelled caller does not cancel; knows them until they end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, which goes on when the caller is cancelled. Raises ShuttingDownError when closed before its end."""
        if self._is_closed:
            work.close()
            raise ShuttingDownError(CLOSED)
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ShuttingDownError(CLOSED) from None
            raise

    async def close(self, patience: Patience, timeout: float) -> None:
        """Take nothing new, and cancel what has not ended after `timeout` seconds."""
        self._is_closed = True
        pending = await patience.wait(set(self._running), timeout)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
