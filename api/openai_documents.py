"""The JSON documents of completions, whole and in chunks, in OpenAI's two shapes."""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chat.wire import usage_json
from engine.outputs import CandidateFinished, PromptLogprobs, TextDelta, TextLogprob, Usage


@dataclass(frozen=True)
class Head:
    """What every document of one answer repeats."""

    prefix: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    unique: str = field(default_factory=lambda: uuid.uuid4().hex)

    def document(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A document around `choices`."""
        return {
            "id": f"{self.prefix}-{self.unique}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class Choice:
    """One candidate's answer as it grows. `echo` is prompt text to show before it, `prompt` what is thought of its tokens."""

    def __init__(self, index: int, echo: str = "") -> None:
        self.index = index
        self.echo = echo
        self.prompt: PromptLogprobs | None = None
        self.text = echo
        self.logprobs: list[TextLogprob] = []
        self.num_tokens = 0
        self.delta_offset = self.next_offset = len(echo)
        self.end: CandidateFinished | None = None

    def add(self, delta: TextDelta) -> None:
        """Take in new text; `delta_offset` is where its first token's text begins."""
        self.text += delta.text
        self.logprobs += delta.logprobs
        self.num_tokens += len(delta.token_ids)
        self.delta_offset = self.next_offset
        self.next_offset += sum(len(token.token) for token in delta.logprobs)

    def ending(self) -> dict[str, Any]:
        """`finish_reason` and `stop_reason`, null while it runs."""
        if self.end is None:
            return {"finish_reason": None, "stop_reason": None}
        return {"finish_reason": self.end.finish_reason.value, "stop_reason": self.end.stop_reason}


class Shape(Protocol):
    """How one of the routes writes its choices. Fields of `whole` and of a last chunk win over `Choice.ending`."""

    prefix: str
    whole_kind: str
    chunk_kind: str

    def whole(self, choice: Choice, with_logprobs: bool) -> dict[str, Any]:
        """A finished choice."""
        ...

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        """The fields of a choice's first chunk, if it has one before its text."""
        ...

    def deltas(
        self, choice: Choice, delta: TextDelta, with_logprobs: bool
    ) -> Iterable[dict[str, Any]]:
        """The fields of the chunks for new text of a choice that has taken it in already."""
        ...

    def closings(self, choice: Choice) -> Sequence[dict[str, Any]]:
        """The fields of a choice's last chunks; the very last carries the finish reason."""
        ...


class ChatShape:
    """/v1/chat/completions."""

    prefix, whole_kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def whole(self, choice: Choice, with_logprobs: bool) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return {"message": message, "logprobs": chat_logprobs(choice.logprobs, with_logprobs)}

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def deltas(
        self, choice: Choice, delta: TextDelta, with_logprobs: bool
    ) -> Iterable[dict[str, Any]]:
        logprobs = chat_logprobs(delta.logprobs, with_logprobs)
        return [{"delta": {"content": delta.text}, "logprobs": logprobs}]

    def closings(self, choice: Choice) -> Sequence[dict[str, Any]]:
        return [{"delta": {}, "logprobs": None}]


class CompletionShape:
    """/v1/completions."""

    prefix, whole_kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def whole(self, choice: Choice, with_logprobs: bool) -> dict[str, Any]:
        logprobs = _legacy_logprobs(choice.logprobs, len(choice.echo)) if with_logprobs else None
        echoed = _echoed_logprobs(choice)
        if logprobs is not None and echoed is not None:
            logprobs = {name: echoed[name] + logprobs[name] for name in logprobs}
        return {"text": choice.text, "logprobs": logprobs}

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        return {"text": choice.echo, "logprobs": _echoed_logprobs(choice)} if choice.echo else None

    def deltas(
        self, choice: Choice, delta: TextDelta, with_logprobs: bool
    ) -> Iterable[dict[str, Any]]:
        logprobs = _legacy_logprobs(delta.logprobs, choice.delta_offset) if with_logprobs else None
        return [{"text": delta.text, "logprobs": logprobs}]

    def closings(self, choice: Choice) -> Sequence[dict[str, Any]]:
        return [{"text": "", "logprobs": None}]


def chat_logprobs(tokens: Sequence[TextLogprob], wanted: bool) -> dict[str, Any] | None:
    """The log-probabilities of a chat's tokens."""
    if not wanted:
        return None
    content = [
        _token(token) | {"top_logprobs": [_token(top) for top in token.top]} for token in tokens
    ]
    return {"content": content, "refusal": None}


def usage_so_far(num_prompt_tokens: int, choices: Sequence[Choice]) -> dict[str, int]:
    """Usage of an answer that is still being written."""
    num_drawn = sum(
        choice.num_tokens if choice.end is None else choice.end.usage.completion_tokens
        for choice in choices
    )
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_drawn,
        "total_tokens": num_prompt_tokens + num_drawn,
    }


def total_usage(ends: Sequence[CandidateFinished], n: int) -> dict[str, Any]:
    """Usage of all candidates of all prompts, in order: each prompt counts once, sampled tokens are summed."""
    firsts = [end.usage for end in ends[::n]]
    return usage_json(
        Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in firsts),
            completion_tokens=sum(end.usage.completion_tokens for end in ends),
            cached_tokens=sum(usage.cached_tokens for usage in firsts),
        )
    )


def _token(token: TextLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.bytes)}


def _legacy_logprobs(tokens: Sequence[TextLogprob], offset: int) -> dict[str, list[Any]]:
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {best.token: best.logprob for best in (token, *token.top)} for token in tokens
        ],
        "text_offset": list(_offsets(tokens, offset)),
    }


def _echoed_logprobs(choice: Choice) -> dict[str, list[Any]] | None:
    """Of the prompt's tokens, the first of which has nothing before it to be judged by."""
    if choice.prompt is None:
        return None
    first = choice.prompt.first
    others = _legacy_logprobs(choice.prompt.others, len(first))
    start = {"tokens": first, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
    return {name: [start[name], *values] for name, values in others.items()}


def _offsets(tokens: Sequence[TextLogprob], offset: int) -> Iterator[int]:
    for token in tokens:
        yield offset
        offset += len(token.token)
