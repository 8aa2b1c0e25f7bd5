"""/v1/chat/completions when the model may call tools: calls are taken out of the text, whole and in chunks."""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from api.openai_documents import ChatShape, Choice, chat_logprobs, kept_chat_logprobs
from api.tool_calls import CallReader, Piece, ToolCall
from api.tools import ToolUse
from engine.outputs import FinishReason, TextDelta


class ToolChatShape(ChatShape):
    """The answer of a choice that called something ends with `tool_calls`, unless it was cut off."""

    def __init__(self, use: ToolUse) -> None:
        self._use = use
        self._readers: dict[int, CallReader] = {}
        self._num_calls: dict[int, int] = {}

    def whole(self, choice: Choice, with_logprobs: bool) -> dict[str, Any]:
        reader = self._reader(choice)
        pieces = [*reader.feed(choice.text), *reader.close()]
        calls = [_call(piece) for piece in pieces if isinstance(piece, ToolCall)]
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        content = text if text.strip() or not calls else None
        message = {"role": "assistant", "content": content, "refusal": None}
        self._num_calls[choice.index] = len(calls)
        return {
            "message": message | ({"tool_calls": calls} if calls else {}),
            "logprobs": kept_chat_logprobs(choice, with_logprobs),
            **self._ending(choice),
        }

    def deltas(
        self, choice: Choice, delta: TextDelta, with_logprobs: bool
    ) -> Iterable[dict[str, Any]]:
        deltas = self._as_deltas(choice, self._reader(choice).feed(delta.text))
        logprobs = chat_logprobs(delta.logprobs, with_logprobs)
        if logprobs is not None and not deltas:
            deltas = [{}]
        return [{"delta": d, "logprobs": None if i else logprobs} for i, d in enumerate(deltas)]

    def closings(self, choice: Choice) -> Sequence[dict[str, Any]]:
        deltas = self._as_deltas(choice, self._reader(choice).close())
        chunks = [{"delta": delta, "logprobs": None} for delta in deltas]
        return [*chunks, {"delta": {}, "logprobs": None, **self._ending(choice)}]

    def _reader(self, choice: Choice) -> CallReader:
        if choice.index not in self._readers:
            self._readers[choice.index] = CallReader(self._use.names, self._use.is_parallel)
        return self._readers[choice.index]

    def _as_deltas(self, choice: Choice, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for piece in pieces:
            if isinstance(piece, str):
                deltas.append({"content": piece})
                continue
            number = self._num_calls.get(choice.index, 0)
            self._num_calls[choice.index] = number + 1
            opened = _call(piece)
            opened["function"] = {"name": piece.name, "arguments": ""}
            arguments = {"index": number, "function": {"arguments": piece.arguments}}
            deltas.append({"tool_calls": [{"index": number, **opened}]})
            deltas.append({"tool_calls": [arguments]})
        return deltas

    def _ending(self, choice: Choice) -> dict[str, Any]:
        is_whole = choice.end is not None and choice.end.finish_reason is FinishReason.STOP
        has_called = bool(self._num_calls.get(choice.index))
        return {"finish_reason": "tool_calls"} if is_whole and has_called else {}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
