"""Bodies of the OpenAI routes, checked once: what a request asks for, in the engine's words.

Four kinds of field: those named in a model below; sampling fields (`engine.sampling_params`); IGNORED_FIELDS, which
change nothing here; UNSUPPORTED_FIELDS, refused by name unless they have a value that changes nothing. Null is the
same as absent. Anything else is unknown: ignored, and named in one warning line.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeGuard

from pydantic import BaseModel, ConfigDict, Field

from api.errors import shorten
from api.response_format import read_response_format
from api.tools import MAX_TOOLS, Tool
from engine.errors import RequestError
from engine.sampling_params import SAMPLING_FIELDS, SamplingParams

logger = logging.getLogger(__name__)

MAX_PROMPTS = 256
MAX_INPUTS = 2048
MAX_MESSAGES = 2**16

IGNORED_FIELDS = frozenset(
    {
        "metadata",
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
    "suffix": ("",),
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


class Body(BaseModel):
    """What every body may say."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    model: str | None = None

    def check_fields(self) -> None:
        """Of a body without sampling fields: raises RequestError for unsupported fields, warns of unknown ones."""
        self.given(frozenset(), self.unsupported)

    def given(
        self, known: frozenset[str], unsupported: Mapping[str, tuple[object, ...]]
    ) -> dict[str, Any]:
        """The fields that are not null. Raises RequestError for unsupported ones; warns of unknown ones."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        given = {k: v for k, v in (fields | (self.model_extra or {})).items() if v is not None}
        for name, neutral in unsupported.items():
            if name in given and given[name] not in neutral:
                raise RequestError(f"{name} is not supported", param=name)
        unknown = given.keys() - fields.keys() - known - IGNORED_FIELDS - unsupported.keys()
        for name, value in fields.items():
            if isinstance(value, BaseModel):
                unknown |= {f"{name}.{inner}" for inner in value.model_extra or ()}
        if unknown:
            names = shorten(", ".join(map(ascii, sorted(unknown))))
            logger.warning("ignored unknown fields of a request: %s", names)
        return given


class StreamOptions(BaseModel):
    """What a stream carries besides its text."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class StreamFlag(BaseModel):
    """A body that may ask for a stream."""

    stream: bool | None = None


class GenerationBody(Body, StreamFlag):
    """What both kinds of completion share."""

    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None

    def usage_chunks(self) -> Literal["none", "last", "every"]:
        """Which chunks of a stream carry usage. Raises RequestError for options without a stream."""
        options = self.stream_options
        if options is not None and not self.stream:
            message = "stream_options: only allowed with stream: true"
            raise RequestError(message, param="stream_options")
        if options is None or not options.include_usage:
            return "none"
        return "every" if options.continuous_usage_stats else "last"

    def sampling(self) -> SamplingParams:
        """The sampling fields, checked. Raises RequestError; warns of unknown fields."""
        given = self.given(SAMPLING_FIELDS, UNSUPPORTED_FIELDS)
        sampling = {name: value for name, value in given.items() if name in SAMPLING_FIELDS}
        params = self._with_response_format(SamplingParams.from_mapping(sampling))
        if params.beams is not None and self.stream:
            message = "stream: only false is allowed with use_beam_search; a search has no text before its end"
            raise RequestError(message, param="stream")
        return params

    def _with_response_format(self, params: SamplingParams) -> SamplingParams:
        grammar = read_response_format(self.response_format)
        if grammar is None:
            return params
        if params.grammar is not None:
            first = params.grammar.param
            message = f"response_format: {first} says already what the answer must be"
            raise RequestError(message, param="response_format")
        return replace(params, grammar=grammar)


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(max_length=MAX_MESSAGES, fail_fast=True)
    logprobs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions; `prompt` is a string, token ids, or a list of either."""

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None


class EmbeddingBody(Body):
    """POST /v1/embeddings; `input` is a string, token ids, or a list of either."""

    unsupported = EMBEDDING_UNSUPPORTED_FIELDS

    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class TokenizeBody(Body):
    """POST /tokenize: a plain prompt, or messages through the chat template."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = Field(
        default=None, max_length=MAX_MESSAGES, fail_fast=True
    )
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = Field(default=None, max_length=MAX_TOOLS)


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: list[int] = Field(max_length=2**20, fail_fast=True)


def read_prompts(
    prompt: object, field: str, most: int, longest: int
) -> list[tuple[str, str | list[int]]]:
    """The prompts of one body, `most` at most, text or token ids, each with its name: `field`, or `field[i]` if there are several.

    Raises RequestError naming `field` or `field[i]`, also for more than `longest` ids, which are not looked at.
    """
    if isinstance(prompt, str) or _is_ids(prompt, field, longest):
        return [(field, prompt)]
    if not isinstance(prompt, list) or not 1 <= len(prompt) <= most:
        allowed = f"a string, token ids, or a list of 1 to {most} of them"
        raise RequestError(f"{field}: {allowed} is required", param=field)
    for i, item in enumerate(prompt):
        if not (isinstance(item, str) or _is_ids(item, f"{field}[{i}]", longest)):
            raise RequestError(f"{field}[{i}]: a string or token ids", param=f"{field}[{i}]")
    return [(f"{field}[{i}]" if len(prompt) > 1 else field, item) for i, item in enumerate(prompt)]


def _is_ids(value: object, name: str, longest: int) -> TypeGuard[list[int]]:
    if not isinstance(value, list) or not value or type(value[0]) is not int:
        return False
    if len(value) > longest:
        message = f"{name} has {len(value)} tokens; the context has {longest}"
        raise RequestError(message, param=name, code="context_length_exceeded")
    return set(map(type, value)) == {int}
