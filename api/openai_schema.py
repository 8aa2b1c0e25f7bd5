"""Bodies of the OpenAI routes, checked once: what a request asks for, in the engine's words.

Four kinds of field: those named in a model below; sampling fields (`engine.sampling_params`); IGNORED_FIELDS, which
change nothing here; UNSUPPORTED_FIELDS, refused by name unless they have a value that changes nothing. Null is the
same as absent. Anything else is unknown: ignored, and named in one warning line.
"""

import logging
from collections.abc import Mapping
from typing import Any, TypeGuard

from pydantic import BaseModel, ConfigDict, Field

from api.errors import shorten
from engine.errors import RequestError
from engine.sampling_params import SAMPLING_FIELDS, SamplingParams

logger = logging.getLogger(__name__)

MAX_PROMPTS = 256

IGNORED_FIELDS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
UNSUPPORTED_FIELDS: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    model: str | None = None


class StreamOptions(BaseModel):
    """What a stream carries besides its text."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    include_usage: bool = False


class GenerationBody(_Body):
    """What both kinds of completion share."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> SamplingParams:
        """The sampling fields, checked. Raises RequestError; warns of unknown fields."""
        given = self._given()
        for name, neutral in UNSUPPORTED_FIELDS.items():
            if name in given and given[name] not in neutral:
                raise RequestError(f"{name} is not supported", param=name)
        unknown = given.keys() - SAMPLING_FIELDS - IGNORED_FIELDS - UNSUPPORTED_FIELDS.keys()
        if unknown := unknown - type(self).model_fields.keys():
            names = shorten(", ".join(sorted(unknown)))
            logger.warning("ignored unknown fields of a request: %s", names)
        return SamplingParams.from_mapping({k: v for k, v in given.items() if k in SAMPLING_FIELDS})

    def _given(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        given = fields | (self.model_extra or {})
        return {name: value for name, value in given.items() if value is not None}


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions; `prompt` is a string, token ids, or a list of either."""

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None


class TokenizeBody(_Body):
    """POST /tokenize: a plain prompt, or messages through the chat template."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True


class DetokenizeBody(_Body):
    """POST /detokenize."""

    tokens: list[int] = Field(max_length=2**20)


def read_messages(raw: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Messages as the engine takes them: a role and a text. Raises RequestError naming `messages[i].…`.

    `developer` counts as system. Text parts are joined by line breaks. Null content is empty for an assistant.
    """
    return [_read_message(message, f"messages[{i}]") for i, message in enumerate(raw)]


def _read_message(message: dict[str, Any], path: str) -> dict[str, str]:
    role = message.get("role")
    if not isinstance(role, str):
        raise RequestError(f"{path}.role: a string is required", param=f"{path}.role")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise RequestError(f"{path}.{name} is not supported", param=f"{path}.{name}")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    text = _read_content(content, f"{path}.content")
    return {"role": "system" if role == "developer" else role, "content": text}


def _read_content(content: object, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{path}: a string or a list of text parts is required", param=path)
    return "\n".join(_read_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _read_part(part: object, path: str) -> str:
    if not isinstance(part, dict):
        raise RequestError(f"{path}: an object is required", param=path)
    if part.get("type") != "text":
        message = f"{path}.type: only text parts are supported, not {part.get('type')!r}"
        raise RequestError(message, param=f"{path}.type")
    if not isinstance(text := part.get("text"), str):
        raise RequestError(f"{path}.text: a string is required", param=f"{path}.text")
    return text


def read_prompts(prompt: object) -> list[str | list[int]]:
    """The prompts of a completion, each text or token ids. Raises RequestError naming `prompt` or `prompt[i]`."""
    if isinstance(prompt, str) or _is_ids(prompt):
        return [prompt]
    if not isinstance(prompt, list) or not 1 <= len(prompt) <= MAX_PROMPTS:
        allowed = f"a string, token ids, or a list of 1 to {MAX_PROMPTS} of them"
        raise RequestError(f"prompt: {allowed} is required", param="prompt")
    for i, item in enumerate(prompt):
        if not (isinstance(item, str) or _is_ids(item)):
            raise RequestError(f"prompt[{i}]: a string or token ids", param=f"prompt[{i}]")
    return prompt


def _is_ids(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
