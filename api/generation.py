"""Runs the engine requests behind one HTTP request, and answers whole or as a stream of server-sent events.

The client's going away ends them, in both modes and from every state (`api.engine_calls`). Nothing is submitted before the
response runs, so nothing can be left behind. Headers go out with the first event, so everything that can be known before
is an ordinary error response. An event whose follower comes in the same step goes out with it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.access import access_of
from api.context import ApiContext
from api.engine_calls import failure_of, running_together, unless_disconnected
from api.errors import as_api_error, error_object
from api.json_answer import JsonAnswer
from api.openai_documents import Choice, Head, JudgedPrompt, Shape, total_usage, usage_so_far
from api.sse import DONE, as_event, as_large_event, end_stream, send_events, start_stream
from chat.ports import Stream
from engine.errors import RequestError
from engine.outputs import (
    CandidateFinished,
    EngineEvent,
    FinishReason,
    PrefillProgress,
    PromptLogprobs,
    TextDelta,
)
from engine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

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
    usage_chunks: Literal["none", "last", "every"]

    @property
    def with_logprobs(self) -> bool:
        return self.params.logprobs is not None


class GenerationResponse(Response):
    """Carries out a job when it is sent."""

    def __init__(self, context: ApiContext, job: Job) -> None:
        super().__init__()
        self._context, self._job = context, job
        self._choices: list[Choice] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._stream if self._job.stream else self._answer
        try:
            await unless_disconnected(receive, lambda: answer(scope, receive, send))
        finally:
            for choice in self._choices:
                if choice.end is not None:
                    access_of(scope).note_candidate(choice.end)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._events() as events:
            async for choice, event in events:
                _take_in(choice, event)
                if isinstance(event, TextDelta) and self._job.with_logprobs:
                    self._job.shape.keep(choice, event)
        job = self._job
        choices = [
            {"index": c.index, **c.ending(), **job.shape.whole(c, job.with_logprobs)}
            for c in self._choices
        ]
        document = job.head.document(job.shape.whole_kind, choices) | {"usage": self._usage()}
        await JsonAnswer(document)(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._events() as events:
            started = False
            try:
                async for choice, event in events:
                    _take_in(choice, event)
                    if not started and self._has_follower(event):
                        continue
                    opening = [] if started else self._opening()
                    if not started:
                        started = True
                        await start_stream(send)
                    await send_events(send, *opening, *self._chunks(choice, event))
                usage = self._job.usage_chunks != "none"
                last = [as_event(self._chunk([], self._usage()))] if usage else []
                await send_events(send, *last, DONE)
            except Exception as error:
                if not started:
                    raise
                logger.error("a stream failed", exc_info=error)
                known = as_api_error(error)
                document = error_object(known.status, known.message, known.param, known.code)
                await send_events(send, as_event(document))
        await end_stream(send)

    def _has_follower(self, event: EngineEvent) -> bool:
        """Whether the same step has more to tell: one that ends a prompt draws a token. (A beam search does not stream.)"""
        return isinstance(event, PrefillProgress) and event.computed_tokens == event.prompt_tokens

    def _opening(self) -> list[bytes]:
        """What comes before the text, unless that is yet to be judged."""
        if self._job.params.prompt_logprobs is not None:
            return []
        openings = ((choice, self._job.shape.opening(choice)) for choice in self._choices)
        return [self._event(c, fields | _OPEN) for c, fields in openings if fields is not None]

    def _chunks(self, choice: Choice, event: EngineEvent) -> list[bytes]:
        shape, with_logprobs = self._job.shape, self._job.with_logprobs
        match event:
            case TextDelta() if event.text or (event.logprobs and with_logprobs):
                chunks = [fields | _OPEN for fields in shape.deltas(choice, event, with_logprobs)]
            case PromptLogprobs() if opening := shape.opening(choice):
                return [as_large_event(self._choice_chunk(choice, opening | _OPEN))]
            case CandidateFinished():
                *chunks, last = shape.closings(choice)
                chunks = [fields | _OPEN for fields in chunks] + [choice.ending() | last]
            case _:
                chunks = []
        return [self._event(choice, fields) for fields in chunks]

    def _event(self, choice: Choice, fields: dict[str, Any]) -> bytes:
        return as_event(self._choice_chunk(choice, fields))

    def _choice_chunk(self, choice: Choice, fields: dict[str, Any]) -> dict[str, Any]:
        return self._chunk([{"index": choice.index, **fields}])

    def _chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        document = self._job.head.document(self._job.shape.chunk_kind, choices)
        if self._job.usage_chunks == "none":
            return document
        if usage is None and self._job.usage_chunks == "every":
            num_prompt_tokens = sum(len(prompt.token_ids) for prompt in self._job.prompts)
            usage = usage_so_far(num_prompt_tokens, self._choices)
        return document | {"usage": usage}

    def _usage(self) -> dict[str, Any]:
        ends = [choice.end for choice in self._choices if choice.end is not None]
        assert len(ends) == len(self._choices), "every candidate ends before its request does"
        return total_usage(ends, self._job.params.n)

    @asynccontextmanager
    async def _events(self) -> AsyncIterator[AsyncIterator[tuple[Choice, EngineEvent]]]:
        """The events of every prompt as they come."""
        submits = [partial(self._submit, prompt) for prompt in self._job.prompts]
        async with running_together(self._context, submits) as events:
            self._choices = self._open_choices()
            yield self._label(events)

    def _open_choices(self) -> list[Choice]:
        """As many as the engine has accepted: until then `n` may be any number."""
        params, choices = self._job.params, []
        for p, prompt in enumerate(self._job.prompts):
            is_judged = params.prompt_logprobs is not None
            judged = JudgedPrompt(len(prompt.token_ids)) if is_judged else None
            choices += (Choice(p * params.n + k, prompt.echo, judged) for k in range(params.n))
        return choices

    async def _label(
        self, events: AsyncIterator[tuple[int, EngineEvent]]
    ) -> AsyncIterator[tuple[Choice, EngineEvent]]:
        """With the choice that an event concerns. What is thought of a prompt concerns all of its choices, once it is complete."""
        n = self._job.params.n
        async for number, event in events:
            own = self._choices[number * n : (number + 1) * n]
            if not isinstance(event, PromptLogprobs):
                yield own[getattr(event, "index", 0)], event
                continue
            judged = own[0].prompt
            assert judged is not None, "nobody has asked for it"
            judged.add(event)
            await asyncio.sleep(0)
            for choice in own if judged.is_complete else ():
                yield choice, event

    def _submit(self, prompt: Prompt) -> Stream:
        try:
            return self._context.engine.submit(prompt.token_ids, self._job.params)
        except RequestError as error:
            param = prompt.param if error.param == "prompt" else error.param
            raise RequestError(error.message, param=param, code=error.code) from None


def _take_in(choice: Choice, event: EngineEvent) -> None:
    match event:
        case TextDelta():
            choice.add(event)
        case CandidateFinished(finish_reason=FinishReason.ERROR):
            raise failure_of(event)
        case CandidateFinished():
            choice.end = event
