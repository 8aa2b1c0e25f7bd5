"""POST /v1/responses, OpenAI's newer way to ask: one answer, text and calls, whole or as named events. Nothing is stored."""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from api.access import access_of
from api.chat_prompt import render_messages
from api.context import ApiContext
from api.engine_calls import failure_of, running_together, unless_disconnected
from api.errors import as_api_error, shorten
from api.forced_calls import force_calls
from api.model_context import Context, read_for_model
from api.responses_documents import ResponseDocument
from api.responses_items import Event
from api.responses_schema import ResponsesBody
from api.responses_tools import flat_paths, read_flat_tool_use
from api.sse import as_event, end_stream, send_events, start_stream
from api.text_limit import check_length
from api.tools import ToolUse
from chat.ports import Stream
from engine.chat_template import DEFAULT_OPTIONS, strings_of
from engine.errors import RequestError
from engine.outputs import CandidateFinished, EngineEvent, FinishReason, TextDelta
from engine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)
router = APIRouter()


@router.post("/v1/responses")
async def respond(context: Context, request: Request) -> "ResponseAnswer":
    """Answer a text or a list of messages."""
    body = await read_for_model(context, request, ResponsesBody)
    params = body.sampling()
    use = read_flat_tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    if use is not None and use.must_call:
        with flat_paths():
            params = await force_calls(context, params, use)
    await context.engine.prepare(params)
    token_ids = await _render(context, body.messages(), use)
    document = ResponseDocument(body, params, context.engine.info.model_name, use)
    return ResponseAnswer(context, token_ids, params, document, is_streamed=bool(body.stream))


async def _render(
    context: ApiContext, messages: list[dict[str, Any]], use: ToolUse | None
) -> list[int]:
    check_length(context, sum(map(len, strings_of(messages))), "input")
    try:
        return await render_messages(context, messages, use, DEFAULT_OPTIONS)
    except RequestError as error:
        param = error.param if error.param == "tools" else "input"
        raise RequestError(error.message, param=param, code=error.code) from None


class ResponseAnswer(Response):
    """Asks the engine when it is sent."""

    def __init__(
        self,
        context: ApiContext,
        token_ids: list[int],
        params: SamplingParams,
        document: ResponseDocument,
        *,
        is_streamed: bool,
    ) -> None:
        super().__init__()
        self._context, self._token_ids, self._params = context, token_ids, params
        self._document, self._is_streamed = document, is_streamed
        self._end: CandidateFinished | None = None
        self._number = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._stream if self._is_streamed else self._answer
        try:
            await unless_disconnected(receive, lambda: answer(scope, receive, send))
        finally:
            if self._end is not None:
                access_of(scope).note_candidate(self._end)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with running_together(self._context, [self._submit]) as events:
            told = [told async for _, event in events for told in self._take_in(event)]
        await JSONResponse(told[-1]["response"])(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = partial(self._send_all, send)
        async with running_together(self._context, [self._submit]) as events:
            has_started = False
            try:
                async for _, event in events:
                    if not has_started:
                        await start_stream(send)
                        has_started = True
                        await write(self._document.opening())
                    await write(self._take_in(event))
            except Exception as error:
                if not has_started:
                    raise
                logger.error("a stream failed", exc_info=error)
                known = as_api_error(error)
                failed = self._document.failed(known.code, shorten(known.message))
                await write([{"type": "response.failed", "response": failed}])
        await end_stream(send)

    async def _send_all(self, send: Send, events: Iterable[Event]) -> None:
        numbered = []
        for event in events:
            document = event | {"sequence_number": self._number}
            self._number += 1
            numbered.append(as_event(document, event["type"]))
        await send_events(send, *numbered)

    def _submit(self) -> Stream:
        try:
            return self._context.engine.submit(self._token_ids, self._params)
        except RequestError as error:
            name = {"prompt": "input", "max_tokens": "max_output_tokens"}.get(error.param or "")
            raise RequestError(error.message, param=name or error.param, code=error.code) from None

    def _take_in(self, event: EngineEvent) -> Iterable[Event]:
        """What a stream tells of an event; of the answer's end last the whole response."""
        match event:
            case TextDelta():
                return self._document.deltas(event.text)
            case CandidateFinished(finish_reason=FinishReason.ERROR):
                raise failure_of(event)
            case CandidateFinished():
                self._end = event
                return self._document.closing(event)
        return ()
