"""What an answer of /v1/responses consists of, as it grows: messages and calls, in order, and the events that tell of them."""

import uuid
from collections.abc import Iterator
from typing import Any

from api.tool_calls import ToolCall

Event = dict[str, Any]


class OutputItems:
    """`items` are complete ones. Every method's events are to be read to their end: they are how it does its work."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._message_id: str | None = None
        self._text = ""

    def open(self) -> Iterator[Event]:
        """Begin a message."""
        self._message_id, self._text = f"msg_{uuid.uuid4().hex}", ""
        item = self._message("in_progress") | {"content": []}
        yield self._item_event("added", item)
        yield self._text_event("response.content_part.added", part=_part(""))

    def say(self, text: str) -> Iterator[Event]:
        """New text of the message, which begins with it if there is none."""
        if self._message_id is None:
            yield from self.open()
        self._text += text
        yield self._text_event("response.output_text.delta", delta=text, logprobs=[])

    def call(self, call: ToolCall) -> Iterator[Event]:
        """A call, which ends the message before it."""
        yield from self._close("completed")
        item = _call_item(call)
        place = {"item_id": item["id"], "output_index": len(self.items)}
        opened = item | {"arguments": "", "status": "in_progress"}
        yield self._item_event("added", opened)
        kind, arguments = "response.function_call_arguments", call.arguments
        yield {"type": f"{kind}.delta", **place, "delta": arguments}
        yield {"type": f"{kind}.done", **place, "name": call.name, "arguments": arguments}
        yield self._item_event("done", item)
        self.items.append(item)

    def end(self, status: str) -> Iterator[Event]:
        """The end of the answer; one that has nothing is an empty message."""
        if self._message_id is None and not self.items:
            yield from self.open()
        yield from self._close(status)

    def _close(self, status: str) -> Iterator[Event]:
        if self._message_id is None:
            return
        item = self._message(status)
        yield self._text_event("response.output_text.done", text=self._text, logprobs=[])
        yield self._text_event("response.content_part.done", part=_part(self._text))
        yield self._item_event("done", item)
        self.items.append(item)
        self._message_id = None

    def _message(self, status: str) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [_part(self._text)],
        }

    def _item_event(self, what: str, item: dict[str, Any]) -> Event:
        kind = f"response.output_item.{what}"
        return {"type": kind, "output_index": len(self.items), "item": item}

    def _text_event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self._message_id, "output_index": len(self.items), "content_index": 0}
        return {"type": kind, **place, **fields}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(call: ToolCall) -> dict[str, Any]:
    return {
        "id": f"fc_{uuid.uuid4().hex}",
        "type": "function_call",
        "status": "completed",
        "call_id": f"call_{uuid.uuid4().hex[:24]}",
        "name": call.name,
        "arguments": call.arguments,
    }
