"""POST /v1/responses, OpenAI's newer way to ask: one answer, whole or as named events. Nothing is stored."""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from api.access import access_of
from api.context import ApiContext
from api.engine_calls import failure_of, running_together, unless_disconnected
from api.errors import as_api_error, shorten
from api.model_context import Context, read_for_model
from api.openai_documents import Choice
from api.responses_documents import ResponseDocument
from api.responses_schema import ResponsesBody
from api.sse import end_stream, send_data, start_stream
from api.text_limit import check_length
from chat.ports import Stream
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
    await context.engine.prepare(params)
    messages = body.messages()
    check_length(context, sum(len(message["content"]) for message in messages), "input")
    try:
        token_ids = await context.engine.render_chat(messages)
    except RequestError as error:
        raise RequestError(error.message, param="input", code=error.code) from None
    return ResponseAnswer(context, token_ids, params, body)


class ResponseAnswer(Response):
    """Asks the engine when it is sent."""

    def __init__(
        self,
        context: ApiContext,
        token_ids: list[int],
        params: SamplingParams,
        body: ResponsesBody,
    ) -> None:
        super().__init__()
        self._context, self._token_ids, self._params = context, token_ids, params
        self._choice = Choice(0)
        model = context.engine.info.model_name
        self._document = ResponseDocument(body, params, model, self._choice)
        self._is_streamed = bool(body.stream)
        self._number = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._stream if self._is_streamed else self._answer
        try:
            await unless_disconnected(receive, lambda: answer(scope, receive, send))
        finally:
            if self._choice.end is not None:
                access_of(scope).note_candidate(self._choice.end)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with running_together(self._context, [self._submit]) as events:
            async for _, event in events:
                self._take_in(event)
        await JSONResponse(self._document.whole())(scope, receive, send)

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
                    self._take_in(event)
                    if isinstance(event, TextDelta) and event.text:
                        await write([self._document.delta(event.text)])
                await write(self._document.closing())
            except Exception as error:
                if not has_started:
                    raise
                logger.error("a stream failed", exc_info=error)
                known = as_api_error(error)
                failed = self._document.failed(known.code, shorten(known.message))
                await write([{"type": "response.failed", "response": failed}])
        await end_stream(send)

    async def _send_all(self, send: Send, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            numbered = event | {"sequence_number": self._number}
            self._number += 1
            await send_data(send, numbered, event["type"])

    def _submit(self) -> Stream:
        try:
            return self._context.engine.submit(self._token_ids, self._params)
        except RequestError as error:
            name = {"prompt": "input", "max_tokens": "max_output_tokens"}.get(error.param or "")
            raise RequestError(error.message, param=name or error.param, code=error.code) from None

    def _take_in(self, event: EngineEvent) -> None:
        match event:
            case TextDelta():
                self._choice.add(event)
            case CandidateFinished(finish_reason=FinishReason.ERROR):
                raise failure_of(event)
            case CandidateFinished():
                self._choice.end = event
