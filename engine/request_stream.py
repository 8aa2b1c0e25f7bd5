"""The caller's end of one request: an asynchronous stream of its events, which is also the means to end it."""

import asyncio
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.outputs import (
    CandidateFinished,
    Embedding,
    EngineEvent,
    Failure,
    FinishReason,
    KVUsage,
    PrefillProgress,
    PromptLogprobs,
    RequestFinished,
    TextDelta,
    TextLogprob,
    Timings,
    Usage,
)


@dataclass(slots=True)
class _PendingDeltas:
    """Several deltas of one candidate that nobody has read yet; joined when they are."""

    index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TextLogprob] = field(default_factory=list)

    def add(self, delta: TextDelta) -> "_PendingDeltas":
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        return self

    def join(self) -> TextDelta:
        return TextDelta(
            self.index, "".join(self.texts), tuple(self.token_ids), tuple(self.logprobs)
        )


class RequestStream:
    """The stream of one request. One reader, in the event loop.

    Iterating yields `EngineEvent`s up to and including the terminal `RequestFinished`. `abort` may be called at any
    time, before the first iteration and after the end too, and never raises; the stream then still ends with its
    `CandidateFinished` (reason abort) and `RequestFinished`. Leaving `async with`, `aclose()`, or dropping the stream
    aborts what still runs. Deltas that nobody has read yet are merged, so an unread stream stays small: one delta and
    one end per candidate, and what is thought of the prompt.
    """

    def __init__(
        self,
        request_id: int,
        num_candidates: int,
        abort: Callable[[int, int | None], None],
        awaited: set["RequestStream"],
    ) -> None:
        """`abort` takes (request_id, index or None), in any thread. While somebody waits, `awaited` holds the stream."""
        self.request_id = request_id
        self._abort = abort
        self._awaited = awaited
        self._open = set(range(num_candidates))
        self._queue: dict[object, EngineEvent | _PendingDeltas] = {}
        self._arrived = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_read_out = False
        self._finalizer = weakref.finalize(self, abort, request_id, None)
        self._finalizer.atexit = False

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> EngineEvent:
        while not self._queue:
            if self._is_read_out:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._wait_for(self._arrived)
        event = self._queue.pop(next(iter(self._queue)))
        self._is_read_out = isinstance(event, RequestFinished)
        return event.join() if isinstance(event, _PendingDeltas) else event

    async def __aenter__(self) -> "RequestStream":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def abort(self, index: int | None = None) -> None:
        """End one candidate, or all."""
        if not self._ended.is_set():
            self._abort(self.request_id, index)

    async def aclose(self) -> None:
        """Abort what still runs and return when the engine has let go of it."""
        self.abort()
        await self._wait_for(self._ended)

    def push(self, event: EngineEvent) -> None:
        """The engine's side: queue an event. Event loop only."""
        self._enqueue(event)
        if isinstance(event, CandidateFinished):
            self._open.discard(event.index)
        elif isinstance(event, RequestFinished):
            self._finalizer.detach()
            self._ended.set()
        self._arrived.set()

    def fail(self, error: str) -> None:
        """The engine's side: the engine is gone, so end here what has not ended."""
        if self._ended.is_set():
            return
        for index in sorted(self._open):
            self.push(_lost_candidate(index, error))
        self.push(RequestFinished())

    async def _wait_for(self, event: asyncio.Event) -> None:
        self._awaited.add(self)
        try:
            await event.wait()
        finally:
            self._awaited.discard(self)

    def _enqueue(self, event: EngineEvent) -> None:
        if isinstance(event, TextDelta):
            key = "delta", event.index
            self._queue[key] = _behind(self._queue.get(key), event)
        elif isinstance(event, PrefillProgress):
            self._queue["progress"] = event
        elif isinstance(event, Embedding):
            self._queue["embedding"] = event
        elif isinstance(event, PromptLogprobs):
            self._queue[object()] = event
        elif isinstance(event, CandidateFinished):
            self._queue["finished", event.index] = event
        else:
            self._queue["end"] = event


def _behind(pending: object, delta: TextDelta) -> TextDelta | _PendingDeltas:
    """A delta with what nobody has read of those before it: mostly nothing."""
    if isinstance(pending, _PendingDeltas):
        return pending.add(delta)
    if isinstance(pending, TextDelta):
        return _PendingDeltas(delta.index).add(pending).add(delta)
    return delta


def _lost_candidate(index: int, error: str) -> CandidateFinished:
    """An end about which nothing is known any more."""
    return CandidateFinished(
        index,
        FinishReason.ERROR,
        None,
        Usage(0, 0, 0),
        Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        KVUsage(0, 0, 0, 0.0),
        Failure(error),
    )
