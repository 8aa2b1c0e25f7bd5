"""One poll for all who follow a value: fetched at a rate of its own while somebody does, built once, never for nobody."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeVar

from engine.errors import EngineNotReadyError

T = TypeVar("T")


class SharedPoll(Generic[T]):
    """What `fetch` finds, every `interval` seconds of the loop's clock, so that polls of one rate wake their followers together."""

    def __init__(self, fetch: Callable[[], Awaitable[T]], interval: float) -> None:
        self.fetch, self.interval = fetch, interval
        self._num_followers = 0
        self._forget()

    async def changes(self) -> AsyncGenerator[T]:
        """The value now and each other one that a poll finds, without those that came while the last was taken.

        Waits out the loading of the model; raises what `fetch` raises.
        """
        self._num_followers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._poll())
        seen = 0
        try:
            while True:
                while self._version == seen:
                    await self._changed.wait()
                seen = self._version
                if isinstance(self._value, Exception):
                    raise self._value
                if self._value is not None:
                    yield self._value
        finally:
            self._num_followers -= 1
            if not self._num_followers:
                self._task.cancel()
                self._forget()

    def _forget(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._value: T | Exception | None = None
        self._version = 0
        self._changed = asyncio.Event()

    async def _poll(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while True:
                self._tell(await self._find())
                await asyncio.sleep(self.interval - clock() % self.interval)
        except Exception as error:
            self._tell(error)

    async def _find(self) -> T | None:
        try:
            return await self.fetch()
        except EngineNotReadyError:
            return None

    def _tell(self, value: T | Exception | None) -> None:
        """Wake the followers when there is something new."""
        if value is None or value == self._value:
            return
        self._value = value
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
