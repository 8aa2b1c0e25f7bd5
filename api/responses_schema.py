"""The body of POST /v1/responses: text and calls in, text and calls out, nothing kept from one call to the next."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from api.answer_format import with_format
from api.openai_schema import Body, StreamFlag
from api.responses_input import read_input
from api.responses_tools import FlatTool
from api.tools import MAX_TOOLS
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
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "use_beam_search": (False,),
}
RENAMED_FIELDS = frozenset({"max_tokens", "max_completion_tokens"})


class ResponsesBody(Body, StreamFlag):
    """POST /v1/responses; `input` is a string or a list of messages, calls and their outputs."""

    input: Any
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    tools: list[FlatTool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Any = None
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

    def messages(self) -> list[dict[str, Any]]:
        """Instructions and input as a chat. Raises RequestError naming `input[i].…`."""
        chat = read_input(self.input)
        if not self.instructions:
            return chat
        if chat[0]["role"] == "system":
            text = f"{self.instructions}\n\n{chat[0]['content']}"
            return [{"role": "system", "content": text}, *chat[1:]]
        return [{"role": "system", "content": self.instructions}, *chat]
