"""The body of POST /v1/responses: text in, text out, nothing kept from one call to the next."""

from collections.abc import Mapping
from typing import Any

from api.answer_format import with_format
from api.openai_schema import Body, StreamFlag
from engine.errors import RequestError
from engine.sampling_params import SAMPLING_FIELDS, SamplingParams

UNSUPPORTED_FIELDS: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "best_of": (1,),
    "conversation": (),
    "early_stopping": (False,),
    "include": ([],),
    "length_penalty": (1,),
    "logprobs": (False,),
    "max_tool_calls": (),
    "n": (1,),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": ({}, {"effort": None}, {"effort": "none"}),
    "stream_options": ({}, {"include_obfuscation": False}),
    "response_format": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "use_beam_search": (False,),
}
RENAMED_FIELDS = frozenset({"max_tokens", "max_completion_tokens"})
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_PARTS = ("input_text", "output_text")


class ResponsesBody(Body, StreamFlag):
    """POST /v1/responses; `input` is a string or a list of messages."""

    input: Any
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    user: str | None = None

    def sampling(self) -> SamplingParams:
        """The sampling fields, checked. Raises RequestError; warns of unknown fields."""
        known = SAMPLING_FIELDS - RENAMED_FIELDS - UNSUPPORTED_FIELDS.keys()
        given = self.given(known | RENAMED_FIELDS, UNSUPPORTED_FIELDS)
        for name in sorted(RENAMED_FIELDS & given.keys()):
            raise RequestError(f"{name}: it is called max_output_tokens here", param=name)
        fields = {k: v for k, v in given.items() if k in known}
        limit = self.max_output_tokens
        if limit is not None and limit < 1:
            name = "max_output_tokens"
            raise RequestError(f"{name}: {limit} is not allowed; 1 or more", param=name)
        params = SamplingParams.from_mapping(fields | {"max_tokens": limit})
        return with_format(params, self.text)

    def messages(self) -> list[dict[str, str]]:
        """Instructions and input as a chat. Raises RequestError naming `input[i].…`."""
        chat = _read_input(self.input)
        if not self.instructions:
            return chat
        if chat[0]["role"] == "system":
            text = f"{self.instructions}\n\n{chat[0]['content']}"
            return [{"role": "system", "content": text}, *chat[1:]]
        return [{"role": "system", "content": self.instructions}, *chat]


def _read_input(value: object) -> list[dict[str, str]]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise _fault("input", "a string or a list of messages is required")
    return [_read_item(item, f"input[{i}]") for i, item in enumerate(value)]


def _read_item(item: object, path: str) -> dict[str, str]:
    if not isinstance(item, Mapping):
        raise _fault(path, "an object is required")
    if item.get("type", "message") != "message":
        raise _fault(f"{path}.type", "only messages are supported")
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _fault(f"{path}.role", f"one of {', '.join(_ROLES)} is required")
    return {"role": _ROLES[role], "content": _read_content(item.get("content"), f"{path}.content")}


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
    if not isinstance(text := part.get("text"), str):
        raise _fault(f"{path}.text", "a string is required")
    return text


def _fault(path: str, what: str) -> RequestError:
    return RequestError(f"{path}: {what}", param=path)
