"""Finds the calls in what a model writes, while it writes.

Two forms are understood, wherever the model's template or our own instructions ask for them: <tool_call>{…}</tool_call>
anywhere in an answer, and an answer that is nothing but such an object or a list of them. A call is an object with the
`name` of a function that was offered and its `arguments` (or `parameters`), an object. Everything else is text. What may
yet become a call is held back; the joined text and the calls do not depend on how the answer was cut into pieces.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pydantic_core

from api.tools import CALL_END, CALL_START


@dataclass(frozen=True)
class ToolCall:
    """One call; `arguments` is JSON."""

    name: str
    arguments: str


Piece = str | ToolCall


class CallReader:
    """Reads one answer. `names` are the functions that were offered; of several calls only the first counts if not `is_parallel`."""

    def __init__(self, names: frozenset[str], is_parallel: bool) -> None:
        self._names, self._is_parallel = names, is_parallel
        self._state: Callable[[bool], list[Piece] | None] = self._at_start
        self._held = ""
        self._value = _ValueEnd()
        self._num_calls = 0

    def feed(self, text: str) -> list[Piece]:
        """What is known after `text`."""
        self._held += text
        return self._advance(is_end=False)

    def close(self) -> list[Piece]:
        """What was held back at the answer's end."""
        return self._advance(is_end=True)

    def _advance(self, is_end: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while self._held and (found := self._state(is_end)) is not None:
            pieces += found
        return pieces

    def _at_start(self, is_end: bool) -> list[Piece] | None:
        """Nothing but space so far, or a call: an object, a list or text may follow."""
        stripped = self._held.lstrip()
        if not stripped:
            return self._take(len(self._held)) if is_end and not self._num_calls else None
        if stripped[0] in "{[":
            self._state, self._value = self._in_value, _ValueEnd()
        else:
            self._state = self._in_text
            if self._num_calls:
                self._held = stripped
        return []

    def _in_value(self, is_end: bool) -> list[Piece] | None:
        end = self._value.find(self._held)
        if end is None and not is_end:
            return None
        calls = self._calls(self._held[:end])
        if calls is None:
            self._state = self._in_text
            return self._take(len(self._held) if end is None else end)
        self._held = self._held[end:] if end is not None else ""
        self._state = self._at_start
        return self._count(calls)

    def _in_text(self, is_end: bool) -> list[Piece] | None:
        start = self._held.find(CALL_START)
        if start >= 0:
            self._state = self._in_call
            return self._take(start)
        num_kept = 0 if is_end else _num_begun(self._held, CALL_START)
        return self._take(len(self._held) - num_kept) if num_kept < len(self._held) else None

    def _in_call(self, is_end: bool) -> list[Piece] | None:
        end = self._held.find(CALL_END)
        if end < 0 and not is_end:
            return None
        inner = self._held[len(CALL_START) : end if end >= 0 else None]
        length = end + len(CALL_END) if end >= 0 else len(self._held)
        self._state = self._at_start
        calls = self._calls(inner)
        if calls is None:
            self._state = self._in_text if end >= 0 else self._state
            return self._take(length)
        self._held = self._held[length:]
        return self._count(calls)

    def _take(self, length: int) -> list[Piece]:
        text, self._held = self._held[:length], self._held[length:]
        return [text] if text else []

    def _count(self, calls: list[ToolCall]) -> list[Piece]:
        room = len(calls) if self._is_parallel else max(0, 1 - self._num_calls)
        self._num_calls += len(calls)
        return list(calls[:room])

    def _calls(self, text: str) -> list[ToolCall] | None:
        try:
            value = pydantic_core.from_json(text, allow_inf_nan=False)
        except ValueError:
            return None
        calls = [self._call(item) for item in (value if isinstance(value, list) else [value])]
        found = [call for call in calls if call is not None]
        return found if found and len(found) == len(calls) else None

    def _call(self, value: Any) -> ToolCall | None:
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if not isinstance(arguments, dict):
            return None
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


class _ValueEnd:
    """Finds the end of a JSON object or list in a text that grows, looking at each character once."""

    def __init__(self) -> None:
        self._position = self._depth = 0
        self._in_string = self._is_escaped = False

    def find(self, text: str) -> int | None:
        """The position behind the value, when it is complete."""
        while self._position < len(text):
            character = text[self._position]
            self._position += 1
            if self._in_string:
                self._pass_string(character)
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return self._position
        return None

    def _pass_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False


def _num_begun(text: str, mark: str) -> int:
    """How many last characters of `text` are the beginning of `mark`."""
    longest = min(len(mark) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
