"""`input` of /v1/responses in the engine's words (`engine.messages`): messages, calls, and what came of them.

`developer` counts as system. Text parts are joined by line breaks. Calls that follow one another, or an assistant's
message, are one message; what a function gave back answers a call before it. The items of an answer may be sent back as they came.
"""

from collections.abc import Mapping
from typing import Any

from api.chat_messages import read_arguments
from engine.errors import RequestError

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_PARTS = ("input_text", "output_text")
_KINDS = ("message", "function_call", "function_call_output")

Message = dict[str, Any]


def read_input(value: object) -> list[Message]:
    """The messages of `input`. Raises RequestError naming `input[i].…`."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise _fault("input", "a string or a list of messages, at least one, is required")
    messages: list[Message] = []
    call_ids: set[str] = set()
    for i, item in enumerate(value):
        _read_item(item, f"input[{i}]", messages, call_ids)
    return messages


def _read_item(item: object, path: str, messages: list[Message], call_ids: set[str]) -> None:
    """Append what an item says to the messages before it, and the id of a call to those known."""
    if not isinstance(item, Mapping):
        raise _fault(path, "an object is required")
    kind = item.get("type", "message")
    if kind not in _KINDS:
        raise _fault(f"{path}.type", f"one of {', '.join(_KINDS)} is required")
    if kind == "message":
        messages.append(_read_message(item, path))
    elif kind == "function_call":
        call = _read_call(item, path)
        call_ids.add(call["id"])
        _calling(messages).append(call)
    else:
        messages.append(_read_output(item, path, call_ids))


def _calling(messages: list[Message]) -> list[Any]:
    """The calls of the message that the assistant is writing."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1].setdefault("tool_calls", [])


def _read_message(item: Mapping[str, Any], path: str) -> Message:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _fault(f"{path}.role", f"one of {', '.join(_ROLES)} is required")
    return {"role": _ROLES[role], "content": _read_content(item.get("content"), f"{path}.content")}


def _read_call(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    call_id = _read_text(item, "call_id", path)
    function = {
        "name": _read_text(item, "name", path),
        "arguments": read_arguments(item.get("arguments"), f"{path}.arguments"),
    }
    return {"id": call_id, "type": "function", "function": function}


def _read_output(item: Mapping[str, Any], path: str, call_ids: set[str]) -> Message:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or call_id not in call_ids:
        raise _fault(f"{path}.call_id", "the call_id of a function_call before this is required")
    content = _read_content(item.get("output"), f"{path}.output")
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _read_content(content: object, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise _fault(path, "a string or a list of text parts is required")
    return "\n".join(_read_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _read_part(part: object, path: str) -> str:
    if not isinstance(part, Mapping):
        raise _fault(path, "an object is required")
    if part.get("type") not in _PARTS:
        raise _fault(f"{path}.type", f"one of {', '.join(_PARTS)} is required")
    return _read_text(part, "text", path)


def _read_text(item: Mapping[str, Any], name: str, path: str) -> str:
    if not isinstance(text := item.get(name), str):
        raise _fault(f"{path}.{name}", "a string is required")
    return text


def _fault(path: str, what: str) -> RequestError:
    return RequestError(f"{path}: {what}", param=path)
