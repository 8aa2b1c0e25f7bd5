"""The time that what runs is given to end in, which somebody may cut short."""

import asyncio
from collections.abc import Collection
from typing import Any


class Patience:
    """Waits for tasks until they are done, until a time is over, or until `end` was called."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    def end(self) -> None:
        """From now on nothing is waited for."""
        self._ended.set()

    async def wait(
        self, tasks: Collection[asyncio.Task[Any]], timeout: float
    ) -> set[asyncio.Task[Any]]:
        """Returns those still running."""
        if not tasks:
            return set()
        all_done = asyncio.ensure_future(asyncio.wait(tasks))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait(
                {all_done, ended}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            all_done.cancel()
            ended.cancel()
        return {task for task in tasks if not task.done()}
