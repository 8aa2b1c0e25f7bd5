"""The JSON documents of completions, whole and in chunks, in OpenAI's two shapes."""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chat.json_parts import JsonList, Written
from chat.wire import usage_json
from engine.outputs import CandidateFinished, PromptLogprobs, TextDelta, TextLogprob, Usage

LEGACY_COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


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


Columns = Mapping[str, Sequence[Any]]
"""What is told of tokens, in lists of one value a token."""


class WrittenColumns:
    """Columns that grow, written as they come: an answer may have more than a million values."""

    def __init__(self) -> None:
        self._lists: defaultdict[str, JsonList] = defaultdict(JsonList)

    def extend(self, columns: Columns) -> None:
        """Append what is told of further tokens."""
        for name, values in columns.items():
            self._lists[name].extend(values)

    def document(self, names: Iterable[str], *behind: "WrittenColumns") -> dict[str, Written]:
        """All of them, with those of others behind."""
        return {
            name: self._lists[name].written(*(each._lists[name] for each in behind))
            for name in names
        }


class JudgedPrompt:
    """What is thought of a prompt's tokens, told bit by bit; the first has nothing before it to be judged by."""

    def __init__(self, num_tokens: int) -> None:
        self.columns = WrittenColumns()
        self._num_tokens, self._num_told, self._offset = num_tokens, 0, 0

    @property
    def is_complete(self) -> bool:
        return self._num_told == self._num_tokens

    def add(self, told: PromptLogprobs) -> None:
        """Take in what is told of further tokens."""
        if told.first is not None:
            self._num_told, self._offset = 1, len(told.first)
            self.columns.extend(
                {
                    "tokens": [told.first],
                    "token_logprobs": [None],
                    "top_logprobs": [None],
                    "text_offset": [0],
                }
            )
        self.columns.extend(legacy_columns(told.others, self._offset))
        self._num_told += len(told.others)
        self._offset += sum(len(token.token) for token in told.others)


class Choice:
    """One candidate's answer as it grows. `echo` is prompt text to show before it, `prompt` what is thought of its tokens.

    `columns` is what the answer's shape keeps of its tokens.
    """

    def __init__(self, index: int, echo: str = "", prompt: JudgedPrompt | None = None) -> None:
        self.index = index
        self.echo, self.prompt = echo, prompt
        self.text = echo
        self.columns = WrittenColumns()
        self.num_tokens = 0
        self.delta_offset = self.next_offset = len(echo)
        self.end: CandidateFinished | None = None

    def add(self, delta: TextDelta) -> None:
        """Take in new text; `delta_offset` is where its first token's text begins."""
        self.text += delta.text
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

    def keep(self, choice: Choice, delta: TextDelta) -> None:
        """For `whole`: what is to be told of the tokens of a choice that has taken them in already."""
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
        return {"message": message, "logprobs": kept_chat_logprobs(choice, with_logprobs)}

    def keep(self, choice: Choice, delta: TextDelta) -> None:
        choice.columns.extend(_chat_columns(delta.logprobs))

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
        return {"text": choice.text, "logprobs": _kept_logprobs(choice) if with_logprobs else None}

    def keep(self, choice: Choice, delta: TextDelta) -> None:
        choice.columns.extend(legacy_columns(delta.logprobs, choice.delta_offset))

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        prompt = choice.prompt
        logprobs = None if prompt is None else prompt.columns.document(LEGACY_COLUMNS)
        return {"text": choice.echo, "logprobs": logprobs} if choice.echo else None

    def deltas(
        self, choice: Choice, delta: TextDelta, with_logprobs: bool
    ) -> Iterable[dict[str, Any]]:
        logprobs = legacy_columns(delta.logprobs, choice.delta_offset) if with_logprobs else None
        return [{"text": delta.text, "logprobs": logprobs}]

    def closings(self, choice: Choice) -> Sequence[dict[str, Any]]:
        return [{"text": "", "logprobs": None}]


def chat_logprobs(tokens: Sequence[TextLogprob], wanted: bool) -> dict[str, Any] | None:
    """The log-probabilities of a chat's tokens."""
    return {**_chat_columns(tokens), "refusal": None} if wanted else None


def kept_chat_logprobs(choice: Choice, wanted: bool) -> dict[str, Any] | None:
    """Those of all that `ChatShape.keep` has kept."""
    return {**choice.columns.document(["content"]), "refusal": None} if wanted else None


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


def _chat_columns(tokens: Sequence[TextLogprob]) -> Columns:
    content = [
        _token(token) | {"top_logprobs": [_token(top) for top in token.top]} for token in tokens
    ]
    return {"content": content}


def legacy_columns(tokens: Sequence[TextLogprob], offset: int) -> Columns:
    """LEGACY_COLUMNS of tokens whose text begins at `offset`."""
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {best.token: best.logprob for best in (token, *token.top)} for token in tokens
        ],
        "text_offset": list(_offsets(tokens, offset)),
    }


def _kept_logprobs(choice: Choice) -> dict[str, Any]:
    """The prompt's, if it is judged, and the answer's."""
    parts = [choice.columns] if choice.prompt is None else [choice.prompt.columns, choice.columns]
    return parts[0].document(LEGACY_COLUMNS, *parts[1:])


def _offsets(tokens: Sequence[TextLogprob], offset: int) -> Iterator[int]:
    for token in tokens:
        yield offset
        offset += len(token.token)
