"""Watchers of the dashboard for bench_dashboard, as light as can be: `python -m benchmarks.watchers URL`

Each line of input is a number: so many sockets then follow all three topics, read every frame and look at none. A line of
output says that they do: each of them has had a frame of every topic. Ends with its input.
"""

import asyncio
import json
import sys
from contextlib import AsyncExitStack

from websockets.asyncio.client import ClientConnection, connect

TOPICS = ("stats", "requests", "blocks")


async def follow(socket: ClientConnection, has_begun: asyncio.Event) -> None:
    """Read for ever; `has_begun` is set once all topics have come: the greeting is one frame, each topic one more."""
    for topic in TOPICS:
        await socket.send(json.dumps({"type": "subscribe", "topic": topic}))
    num_frames = 0
    while True:
        await socket.recv(decode=False)
        num_frames += 1
        if num_frames > len(TOPICS):
            has_begun.set()


async def watch(url: str, count: int, until: asyncio.Future[str]) -> None:
    """So many watchers until the next line comes."""
    address = f"{url.replace('http', 'ws')}/ws/chat"
    async with AsyncExitStack() as stack:
        sockets = [
            await stack.enter_async_context(connect(address, compression=None))
            for _ in range(count)
        ]
        begun = [asyncio.Event() for _ in sockets]
        readers = [
            asyncio.create_task(follow(*pair)) for pair in zip(sockets, begun, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
        print(count, flush=True)
        await until
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def main(url: str) -> None:
    """Obey until the input ends."""
    loop = asyncio.get_running_loop()
    line = await loop.run_in_executor(None, sys.stdin.readline)
    while line:
        following = loop.run_in_executor(None, sys.stdin.readline)
        await watch(url, int(line), following)
        line = following.result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
