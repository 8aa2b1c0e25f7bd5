"""The JSON documents of /v1/responses: the response, its one message, and the events of a stream in their order."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

from api.openai_documents import Choice
from api.responses_schema import ResponsesBody
from engine.outputs import FinishReason, Usage
from engine.sampling_params import SamplingParams

STATUS = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.ABORT: "cancelled",
}


class ResponseDocument:
    """One response as it grows; its text is the choice's."""

    def __init__(
        self, body: ResponsesBody, params: SamplingParams, model: str, choice: Choice
    ) -> None:
        self._choice = choice
        self._message_id = f"msg_{uuid.uuid4().hex}"
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
            "tool_choice": "auto",
            "tools": [],
            "top_p": params.top_p,
            "truncation": "disabled",
            "user": body.user,
        }

    def whole(self) -> dict[str, Any]:
        """The response as it is."""
        end = self._choice.end
        if end is None:
            return self._document("in_progress", [], None)
        status = STATUS[end.finish_reason]
        return self._document(status, [self._message(status)], _usage(end.usage))

    def failed(self, code: str | None, message: str) -> dict[str, Any]:
        """The response after a failure."""
        error = {"code": code or "server_error", "message": message}
        return self._document("failed", [], None) | {"error": error}

    def opening(self) -> Iterator[dict[str, Any]]:
        """The events before the first text."""
        yield {"type": "response.created", "response": self.whole()}
        yield {"type": "response.in_progress", "response": self.whole()}
        item = self._message("in_progress") | {"content": []}
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        yield self._part_event("response.content_part.added", part=_part(""))

    def delta(self, text: str) -> dict[str, Any]:
        """The event for new text."""
        return self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def closing(self) -> Iterator[dict[str, Any]]:
        """The events after the last text."""
        whole = self.whole()
        text = self._choice.text
        yield self._part_event("response.output_text.done", text=text, logprobs=[])
        yield self._part_event("response.content_part.done", part=_part(text))
        (item,) = whole["output"]
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        kind = "completed" if whole["status"] == "completed" else "incomplete"
        yield {"type": f"response.{kind}", "response": whole}

    def _part_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        place = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        return {"type": kind, **place, **fields}

    def _message(self, status: str) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": "incomplete" if status == "cancelled" else status,
            "content": [_part(self._choice.text)],
        }

    def _document(
        self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        is_cut = status == "incomplete"
        return self._fixed | {
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": output,
            "usage": usage,
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
