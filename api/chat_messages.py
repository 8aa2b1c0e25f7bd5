"""The messages of OpenAI's bodies in the engine's words (`engine.messages`).

`developer` counts as system. Text parts are joined by line breaks. Null content is empty for an assistant. A call's
arguments are a JSON object in a string; a tool's message answers a call of an assistant's message before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pydantic_core

from engine.errors import RequestError

_NOT_SUPPORTED = ("function_call", "audio")


def read_messages(raw: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as the engine takes them. Raises RequestError naming `messages[i].…`."""
    call_ids: set[str] = set()
    messages = []
    for i, message in enumerate(raw):
        messages.append(_read_message(message, f"messages[{i}]", call_ids))
        call_ids |= {call["id"] for call in messages[-1].get("tool_calls", ())}
    return messages


def _read_message(message: Mapping[str, Any], path: str, call_ids: set[str]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise _fault(f"{path}.role", "a string is required")
    for name in _NOT_SUPPORTED:
        if message.get(name):
            raise _fault(f"{path}.{name}", "this is not supported")
    if role != "assistant" and message.get("tool_calls"):
        raise _fault(f"{path}.tool_calls", "only an assistant calls tools")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    read = {"role": "system" if role == "developer" else role}
    read["content"] = _read_content(content, f"{path}.content")
    return read | _read_tool_fields(message, path, call_ids)


def _read_tool_fields(message: Mapping[str, Any], path: str, call_ids: set[str]) -> dict[str, Any]:
    if message["role"] == "assistant":
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise _fault(f"{path}.tool_calls", "a list is required")
        paths = (f"{path}.tool_calls[{i}]" for i in range(len(calls)))
        read = [_read_call(call, where) for call, where in zip(calls, paths, strict=True)]
        return {"tool_calls": read} if read else {}
    if message["role"] != "tool":
        return {}
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or call_id not in call_ids:
        text = "the id of a call of an assistant's message before this one is required"
        raise _fault(f"{path}.tool_call_id", text)
    return {"tool_call_id": call_id}


def _read_call(call: object, path: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise _fault(path, "an object is required")
    if call.get("type", "function") != "function":
        raise _fault(f"{path}.type", "only 'function' is supported")
    if not isinstance(call_id := call.get("id"), str):
        raise _fault(f"{path}.id", "a string is required")
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise _fault(f"{path}.function", "an object is required")
    if not isinstance(name := function.get("name"), str):
        raise _fault(f"{path}.function.name", "a string is required")
    arguments = read_arguments(function.get("arguments"), f"{path}.function.arguments")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def read_arguments(arguments: object, path: str) -> dict[str, Any]:
    """A call's arguments, an object. Raises RequestError naming `path`."""
    try:
        given = arguments if isinstance(arguments, str) else "null"
        read = pydantic_core.from_json(given, allow_inf_nan=False)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise _fault(path, "a JSON object in a string is required")
    return read


def _read_content(content: object, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _fault(path, "a string or a list of text parts is required")
    return "\n".join(_read_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _read_part(part: object, path: str) -> str:
    if not isinstance(part, dict):
        raise _fault(path, "an object is required")
    if part.get("type") != "text":
        raise _fault(f"{path}.type", f"only text parts are supported, not {part.get('type')!r}")
    if not isinstance(text := part.get("text"), str):
        raise _fault(f"{path}.text", "a string is required")
    return text


def _fault(path: str, what: str) -> RequestError:
    return RequestError(f"{path}: {what}", param=path)
