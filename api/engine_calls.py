"""The engine requests behind one HTTP request: they run together and end together, also when the client goes away."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Receive

from api.context import ApiContext
from api.errors import ApiError
from chat.ports import Stream
from engine.outputs import CandidateFinished, EngineEvent, Failure, FailureCode

MERGE_QUEUE = 64
T = TypeVar("T")


@asynccontextmanager
async def running_together(
    context: ApiContext, submits: Iterable[Callable[[], Stream]]
) -> AsyncIterator[AsyncIterator[tuple[int, EngineEvent]]]:
    """Submit all; the events of all as they come, each with its request's number.

    What still runs when the block is left is aborted, all at once; so it is when a later one is refused.
    """
    task = asyncio.current_task()
    assert task is not None, "responses run in tasks"
    streams: list[Stream] = []
    try:
        for submit in submits:
            streams.append(submit())
            context.streams[streams[-1]] = task
        async with aclosing(_merge(streams)) as events:
            yield events
    finally:
        await _let_go(context, streams)


def failure_of(end: CandidateFinished) -> ApiError:
    """What a client is told when the engine ended a request with an error: a grammar that is too much for it is the client's."""
    failure = end.error or Failure("the engine failed")
    status = 400 if failure.code is FailureCode.GRAMMAR else 500
    return ApiError(status, failure.message, code=failure.code)


async def unless_disconnected(
    receive: Receive, work: Callable[[], Coroutine[Any, Any, T]]
) -> T | None:
    """What `work` gives, or raises; cancelled when the client goes away, and then None."""
    working = asyncio.create_task(work())
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = working.done()
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
    return working.result() if ended else None


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _let_go(context: ApiContext, streams: list[Stream]) -> None:
    """Abort every stream before waiting for any: the engine says that one has ended only after a step."""
    for stream in streams:
        stream.abort()
    try:
        await asyncio.gather(*(stream.aclose() for stream in streams))
    finally:
        for stream in streams:
            del context.streams[stream]


async def _merge(streams: list[Stream]) -> AsyncGenerator[tuple[int, EngineEvent], None]:
    """The events of all streams as they come, each with its stream's number."""
    if len(streams) == 1:
        async for event in streams[0]:
            yield 0, event
        return
    queue: asyncio.Queue[tuple[int, EngineEvent | Exception | None]] = asyncio.Queue(MERGE_QUEUE)

    async def pump(number: int, stream: Stream) -> None:
        try:
            async for event in stream:
                await queue.put((number, event))
            await queue.put((number, None))
        except Exception as error:
            await queue.put((number, error))

    pumps = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        running = len(pumps)
        while running:
            number, event = await queue.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                running -= 1
            else:
                yield number, event
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
