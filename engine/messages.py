"""The messages of a chat as callers give them, checked. Errors are RequestErrors that name `messages[i].…`.

`messages` is not empty; each has a `role` (system, user, assistant, tool; developer means system) and a `content`: a
string, which may be empty, or a list of parts {"type": "text", "text"}, which are joined by a newline. An assistant's may
have `tool_calls`, [{"id", "type": "function", "function": {"name", "arguments": {…}}}], a tool's has `tool_call_id` and may
have a `name`. Null content, other roles, other parts, other keys (unless null) and lone surrogates are refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import RequestError

ROLES = {name: name for name in ("system", "user", "assistant", "tool")} | {"developer": "system"}
FURTHER_KEYS = {"assistant": ("tool_calls",), "tool": ("tool_call_id", "name")}


def read_messages(messages: object) -> list[dict[str, Any]]:
    """Check messages by the module's rules; returns new ones with `role`, `content` and what belongs to the role."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError("messages must be a list of messages", param="messages")
    if not messages:
        raise RequestError("messages must not be empty", param="messages")
    return [_read_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def check_unicode(text: str, path: str) -> None:
    """Raise RequestError for half of a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{path} has a lone surrogate at character {error.start}, which is no text"
        raise RequestError(message, param=path) from error


def _read_message(message: object, path: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{path} must be an object with role and content", param=path)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        allowed = ", ".join(ROLES)
        raise RequestError(f"{path}.role must be one of {allowed}", param=f"{path}.role")
    further = FURTHER_KEYS.get(role, ())
    for key, value in message.items():
        if key not in ("role", "content", *further) and value is not None:
            raise RequestError(f"{path}.{key} is not supported", param=f"{path}.{key}")
    content = _read_content(message.get("content"), f"{path}.content")
    kept = {key: message[key] for key in further if message.get(key) is not None}
    return {"role": ROLES[role], "content": content} | kept


def _read_content(content: object, path: str) -> str:
    if isinstance(content, str):
        check_unicode(content, path)
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes) or not content:
        message = f"{path} must be a string, or a list of parts of type text"
        raise RequestError(message, param=path)
    return "\n".join(_read_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _read_part(part: object, path: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        message = f"{path} must be {{'type': 'text', 'text': …}}: this model reads text only"
        raise RequestError(message, param=path)
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{path}.text must be a string", param=f"{path}.text")
    check_unicode(text, f"{path}.text")
    return text
