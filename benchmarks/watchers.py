"""Watchers of the dashboard for bench_dashboard, as light as can be: `python -m benchmarks.watchers URL MOST`

Each line of input is a number up to MOST: so many sockets then listen to what a visible dashboard listens to, and the others
are silent as hidden ones are. They read every frame and look at none, and ask for the new points of the history as often as
the page does. A line of output says that each has had a frame of every topic. Ends with its input.
"""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack

import httpx2 as httpx
from websockets.asyncio.client import ClientConnection, connect

TOPICS = ("stats", "requests", "blocks")
HISTORY_INTERVAL_S = 5.0


class Watcher:
    """One dashboard; `has_begun` once as many frames have come as there are topics."""

    def __init__(self, socket: ClientConnection, http: httpx.AsyncClient) -> None:
        self._socket, self._http = socket, http
        self._num_frames = 0
        self._history: asyncio.Task[None] | None = None
        self.has_begun = asyncio.Event()

    async def read(self) -> None:
        """For ever."""
        while True:
            await self._socket.recv(decode=False)
            self._num_frames += 1
            if self._num_frames == len(TOPICS):
                self.has_begun.set()

    async def listen(self, delay: float) -> None:
        """Become visible; the first look at the history comes after `delay` seconds."""
        if self._history is None:
            self._num_frames = 0
            self.has_begun.clear()
            self._history = asyncio.create_task(self._ask_history(delay))
            await self._tell("subscribe")

    async def rest(self) -> None:
        """Become hidden."""
        if self._history is not None:
            self._history.cancel()
            self._history = None
            await self._tell("unsubscribe")

    async def _tell(self, kind: str) -> None:
        for topic in TOPICS:
            await self._socket.send(json.dumps({"type": kind, "topic": topic}))

    async def _ask_history(self, delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            await self._http.get(f"/api/history?window=15m&since={int(time.time()) - 5}")
            await asyncio.sleep(HISTORY_INTERVAL_S)


async def main(url: str, most: int) -> None:
    """Obey until the input ends."""
    loop = asyncio.get_running_loop()
    address = f"{url.replace('http', 'ws')}/ws/chat"
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False))
        watchers, readers = [], []
        for _ in range(most):
            socket = await stack.enter_async_context(connect(address, compression=None))
            await socket.recv()
            watchers.append(Watcher(socket, http))
            readers.append(asyncio.create_task(watchers[-1].read()))
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            count = int(line)
            for number, watcher in enumerate(watchers[:count]):
                await watcher.listen(number * HISTORY_INTERVAL_S / most)
            for watcher in watchers[count:]:
                await watcher.rest()
            await asyncio.gather(*(watcher.has_begun.wait() for watcher in watchers[:count]))
            print(count, flush=True)
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
