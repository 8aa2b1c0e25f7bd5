"""Runs the engine requests behind one HTTP request, and answers whole or as a stream of server-sent events.

The client's going away ends them, in both modes and from every state: the response itself watches the connection.
Nothing is submitted before the response runs, so nothing can be left behind. Headers go out with the first event, so
everything that can be known before is an ordinary error response.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from api.access import access_of
from api.context import ApiContext
from api.errors import ApiError, as_api_error, error_object
from api.openai_documents import Choice, Head, Shape, total_usage
from chat.ports import Stream
from engine.errors import RequestError
from engine.outputs import CandidateFinished, EngineEvent, FinishReason, TextDelta
from engine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

MERGE_QUEUE = 64
_OPEN = {"finish_reason": None, "stop_reason": None}


@dataclass(frozen=True)
class Prompt:
    """One prompt to continue; `param` names it in errors, `echo` is text to show before the answer."""

    token_ids: list[int]
    param: str
    echo: str = ""


@dataclass(frozen=True)
class Job:
    """One HTTP request: choice `index` = prompt * n + candidate."""

    prompts: list[Prompt]
    params: SamplingParams
    head: Head
    shape: Shape
    stream: bool
    include_usage: bool

    @property
    def with_logprobs(self) -> bool:
        return self.params.logprobs is not None


class GenerationResponse(Response):
    """Carries out a job when it is sent."""

    def __init__(self, context: ApiContext, job: Job) -> None:
        super().__init__()
        self._context, self._job = context, job
        n = job.params.n
        self._choices = [
            Choice(p * n + k, prompt.echo) for p, prompt in enumerate(job.prompts) for k in range(n)
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._stream if self._job.stream else self._answer
        try:
            await _unless_disconnected(receive, lambda: answer(scope, receive, send))
        finally:
            for choice in self._choices:
                if choice.end is not None:
                    access_of(scope).note_candidate(choice.end)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._events() as events:
            async for choice, event in events:
                _take_in(choice, event)
        job = self._job
        choices = [
            {"index": c.index, **job.shape.whole(c, job.with_logprobs), **c.ending()}
            for c in self._choices
        ]
        document = job.head.document(job.shape.whole_kind, choices) | {"usage": self._usage()}
        await JSONResponse(document)(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._events() as events:
            started = False
            try:
                async for choice, event in events:
                    _take_in(choice, event)
                    if not started:
                        started = True
                        await self._send_opening(send)
                    await self._send_event(send, choice, event)
                if self._job.include_usage:
                    await _send_data(send, self._chunk([], self._usage()))
                await _send_text(send, "[DONE]")
            except Exception as error:
                if not started:
                    raise
                logger.error("a stream failed", exc_info=error)
                known = as_api_error(error)
                document = error_object(known.status, known.message, known.param, known.code)
                await _send_data(send, document)
        await send({"type": "http.response.body", "body": b""})

    async def _send_opening(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for choice in self._choices:
            fields = self._job.shape.opening(choice)
            if fields is not None:
                await _send_data(send, self._chunk([{"index": choice.index, **fields, **_OPEN}]))

    async def _send_event(self, send: Send, choice: Choice, event: EngineEvent) -> None:
        shape = self._job.shape
        match event:
            case TextDelta() if event.text or (event.logprobs and self._job.with_logprobs):
                fields = shape.delta(choice, event, self._job.with_logprobs) | _OPEN
            case CandidateFinished():
                fields = shape.closing() | choice.ending()
            case _:
                return
        await _send_data(send, self._chunk([{"index": choice.index, **fields}]))

    def _chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        document = self._job.head.document(self._job.shape.chunk_kind, choices)
        return document | {"usage": usage} if self._job.include_usage else document

    def _usage(self) -> dict[str, Any]:
        ends = [choice.end for choice in self._choices if choice.end is not None]
        assert len(ends) == len(self._choices), "every candidate ends before its request does"
        return total_usage(ends, self._job.params.n)

    @asynccontextmanager
    async def _events(self) -> AsyncIterator[AsyncIterator[tuple[Choice, EngineEvent]]]:
        """Submit every prompt; what still runs when the block is left is aborted, all at once."""
        task = asyncio.current_task()
        assert task is not None, "responses run in tasks"
        streams: list[Stream] = []
        try:
            for prompt in self._job.prompts:
                streams.append(self._submit(prompt))
                self._context.streams[streams[-1]] = task
            async with aclosing(_merge(streams)) as events:
                yield self._label(events)
        finally:
            await self._let_go(streams)

    async def _label(
        self, events: AsyncIterator[tuple[int, EngineEvent]]
    ) -> AsyncIterator[tuple[Choice, EngineEvent]]:
        async for number, event in events:
            index = getattr(event, "index", 0)
            yield self._choices[number * self._job.params.n + index], event

    def _submit(self, prompt: Prompt) -> Stream:
        try:
            return self._context.engine.submit(prompt.token_ids, self._job.params)
        except RequestError as error:
            param = prompt.param if error.param == "prompt" else error.param
            raise RequestError(error.message, param=param, code=error.code) from None

    async def _let_go(self, streams: list[Stream]) -> None:
        """Abort every stream before waiting for any: the engine says that one has ended only after a step."""
        for stream in streams:
            stream.abort()
        try:
            await asyncio.gather(*(stream.aclose() for stream in streams))
        finally:
            for stream in streams:
                del self._context.streams[stream]


def _take_in(choice: Choice, event: EngineEvent) -> None:
    match event:
        case TextDelta():
            choice.add(event)
        case CandidateFinished(finish_reason=FinishReason.ERROR):
            raise ApiError(500, event.error or "the engine failed", code="engine_error")
        case CandidateFinished():
            choice.end = event


async def _merge(streams: list[Stream]) -> AsyncGenerator[tuple[int, EngineEvent], None]:
    """The events of all streams as they come, each with its stream's number."""
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


async def _unless_disconnected(
    receive: Receive, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Run `work`; cancel it when the client goes away. Raises what `work` raises."""
    working = asyncio.create_task(work())
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = working.done()
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
    if ended:
        working.result()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_data(send: Send, document: dict[str, Any]) -> None:
    await _send_text(send, json.dumps(document, ensure_ascii=False, separators=(",", ":")))


async def _send_text(send: Send, data: str) -> None:
    body = f"data: {data}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})
