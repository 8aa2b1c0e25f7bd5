"""Bodies of the OpenAI routes, checked once: what a request asks for, in the engine's words.

Four kinds of field: those named in a model below; sampling fields (`engine.sampling_params`); IGNORED_FIELDS, which
change nothing here; UNSUPPORTED_FIELDS, refused by name unless they have a value that changes nothing. Null is the
same as absent. Anything else is unknown: ignored, and named in one warning line.
"""

import logging
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

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


EMBEDDING_UNSUPPORTED_FIELDS: Mapping[str, tuple[object, ...]] = {
    "add_special_tokens": (True,),
    "cache_salt": (),
    "normalize": (True,),
    "priority": (0,),
    "truncate_prompt_tokens": (),
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    model: str | None = None

    def _given(
        self, known: frozenset[str], unsupported: Mapping[str, tuple[object, ...]]
    ) -> dict[str, Any]:
        """The fields that are not null. Raises RequestError for unsupported ones; warns of unknown ones."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        given = {k: v for k, v in (fields | (self.model_extra or {})).items() if v is not None}
        for name, neutral in unsupported.items():
            if name in given and given[name] not in neutral:
                raise RequestError(f"{name} is not supported", param=name)
        unknown = given.keys() - known - IGNORED_FIELDS - unsupported.keys()
        if unknown := unknown - fields.keys():
            names = shorten(", ".join(sorted(unknown)))
            logger.warning("ignored unknown fields of a request: %s", names)
        return given


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
        given = self._given(SAMPLING_FIELDS, UNSUPPORTED_FIELDS)
        sampling = {name: value for name, value in given.items() if name in SAMPLING_FIELDS}
        params = SamplingParams.from_mapping(sampling)
        if params.beams is not None and self.stream:
            message = "stream: only false is allowed with use_beam_search; a search has no text before its end"
            raise RequestError(message, param="stream")
        return params


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions; `prompt` is a string, token ids, or a list of either."""

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None


class EmbeddingBody(_Body):
    """POST /v1/embeddings; `input` is a string, token ids, or a list of either."""

    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    def check_fields(self) -> None:
        """Raises RequestError for unsupported fields; warns of unknown ones."""
        self._given(frozenset(), EMBEDDING_UNSUPPORTED_FIELDS)


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


def read_prompts(prompt: object, field: str) -> list[tuple[str, str | list[int]]]:
    """The prompts of one body, text or token ids, each with its name: `field`, or `field[i]` if there are several.

    Raises RequestError naming `field` or `field[i]`.
    """
    if isinstance(prompt, str) or _is_ids(prompt):
        return [(field, prompt)]
    if not isinstance(prompt, list) or not 1 <= len(prompt) <= MAX_PROMPTS:
        allowed = f"a string, token ids, or a list of 1 to {MAX_PROMPTS} of them"
        raise RequestError(f"{field}: {allowed} is required", param=field)
    for i, item in enumerate(prompt):
        if not (isinstance(item, str) or _is_ids(item)):
            raise RequestError(f"{field}[{i}]: a string or token ids", param=f"{field}[{i}]")
    return [(f"{field}[{i}]" if len(prompt) > 1 else field, item) for i, item in enumerate(prompt)]


def _is_ids(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
