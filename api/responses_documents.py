"""The JSON documents of /v1/responses: the response, and the events of a stream in their order."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

from api.responses_items import Event, OutputItems
from api.responses_schema import ResponsesBody
from api.tool_calls import CallReader, Piece, ToolCall
from api.tools import ToolUse
from engine.outputs import CandidateFinished, FinishReason, Usage
from engine.sampling_params import SamplingParams

STATUS = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.ABORT: "cancelled",
}


class ResponseDocument:
    """One response as it grows. With a `use` of tools calls are taken out of the text."""

    def __init__(
        self, body: ResponsesBody, params: SamplingParams, model: str, use: ToolUse | None
    ) -> None:
        self._items = OutputItems()
        self._reader = None if use is None else CallReader(use.names, use.is_parallel)
        self._fixed = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": params.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_p": params.top_p,
            "truncation": "disabled",
            "user": body.user,
        }

    def opening(self) -> Iterator[Event]:
        """The events before the first text."""
        response = self._document("in_progress", None)
        yield {"type": "response.created", "response": response}
        yield {"type": "response.in_progress", "response": response}
        if self._reader is None:
            yield from self._items.open()

    def deltas(self, text: str) -> Iterator[Event]:
        """The events for new text; to be read to their end, also by who does not send them."""
        pieces: list[Piece] = [text] if self._reader is None else self._reader.feed(text)
        yield from self._tell(pieces)

    def closing(self, end: CandidateFinished) -> Iterator[Event]:
        """The events after the last text; the last of them has the whole response."""
        yield from self._tell([] if self._reader is None else self._reader.close())
        status = STATUS[end.finish_reason]
        yield from self._items.end("completed" if status == "completed" else "incomplete")
        kind = "completed" if status == "completed" else "incomplete"
        yield {"type": f"response.{kind}", "response": self._document(status, end.usage)}

    def failed(self, code: str | None, message: str) -> dict[str, Any]:
        """The response after a failure."""
        error = {"code": code or "server_error", "message": message}
        return self._document("failed", None) | {"error": error}

    def _tell(self, pieces: list[Piece]) -> Iterator[Event]:
        for piece in pieces:
            if isinstance(piece, ToolCall):
                yield from self._items.call(piece)
            elif piece:
                yield from self._items.say(piece)

    def _document(self, status: str, usage: Usage | None) -> dict[str, Any]:
        is_cut = status == "incomplete"
        return self._fixed | {
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": list(self._items.items),
            "usage": usage and _usage(usage),
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
