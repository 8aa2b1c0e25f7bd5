"""Pure pieces of a turn: its place, its title, its sampling, its messages for the model."""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from chat.texts import check_pairs, check_text, one_line
from engine.errors import RequestError
from engine.grammar_spec import GRAMMAR_FIELDS
from engine.sampling_params import SamplingParams
from storage.records import NOTHING, AnswerText, ConversationRecord, NewAnswer, PathMessage

DEFAULT_SAMPLING: Mapping[str, Any] = {"temperature": 0.8}
TITLE_LENGTH = 48
UNTITLED = "…"
MAX_TITLE_LENGTH = 200
MAX_SYSTEM_PROMPT_LENGTH = 100_000
_MARKDOWN = MarkdownIt("commonmark", {"html": False})
_COPY = re.compile(r"Copy (?:\d+ )?of (.+)")
SEED_BITS = 32
_ALIASES = {"max_completion_tokens": "max_tokens"}


@dataclass(frozen=True)
class Turn:
    """What is asked for, once its place in a tree is known. `content` None: answers below `parent_id` only.

    Answers start as `beginning`. `system_prompt` is that of a conversation which the turn makes.
    """

    conversation: ConversationRecord | None
    parent_id: str | None
    content: str | None
    n: int | None = None
    sampling: Mapping[str, Any] | None = None
    beginning: AnswerText = NOTHING
    system_prompt: str | None = None

    @property
    def effective_system_prompt(self) -> str | None:
        """None: the template's own."""
        return self.conversation.system_prompt if self.conversation else self.system_prompt


def check_content(content: str) -> None:
    """Raise RequestError when this cannot be a user's message."""
    if not content.strip():
        raise RequestError("content must not be empty", param="content")
    check_text(content, "content")


def check_title(value: object, param: str) -> str:
    """A title in one line. Raises RequestError."""
    title = one_line(value) if isinstance(value, str) else ""
    if not 1 <= len(title) <= MAX_TITLE_LENGTH:
        message = f"{param} must be a text of 1 to {MAX_TITLE_LENGTH} characters"
        raise RequestError(message, param=param)
    check_pairs(title, param)
    return title


def check_system_prompt(value: object, param: str) -> str | None:
    """A system prompt; None for no text, which is the model's own. Raises RequestError."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_SYSTEM_PROMPT_LENGTH:
        message = f"{param} must be a text of at most {MAX_SYSTEM_PROMPT_LENGTH} characters"
        raise RequestError(message, param=param)
    check_text(value, param)
    return value or None


def title_of(content: str) -> str:
    """The first words of a first message without their Markdown, at most TITLE_LENGTH characters."""
    beginning = content[: 20 * TITLE_LENGTH]
    words = _plain_words(beginning) or one_line(beginning) or UNTITLED
    if len(words) <= TITLE_LENGTH:
        return words
    cut = words[:TITLE_LENGTH]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut) + "…"


def copy_titles(title: str) -> Iterator[str]:
    """What a copy may be called: "Copy of X", "Copy 2 of X" and so on. The copy of a copy is one more of X."""
    copied = _COPY.fullmatch(title)
    original = copied[1] if copied else title
    yield f"Copy of {original}"[:MAX_TITLE_LENGTH]
    for number in count(2):
        yield f"Copy {number} of {original}"[:MAX_TITLE_LENGTH]


def _plain_words(markdown: str) -> str:
    """What Markdown shows, in one line."""
    blocks = (
        "".join(map(_shown, block.children or [block])) for block in _MARKDOWN.parse(markdown)
    )
    return one_line(" ".join(blocks))


def _shown(token: Token) -> str:
    return " " if token.type in ("softbreak", "hardbreak") else token.content


def merge_sampling(*layers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Sampling keys in wire form; later layers win, null counts as absent.

    A layer that says what answers must look like replaces what an earlier one said about that, in whichever field.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        given = {key: value for key, value in (layer or {}).items() if value is not None}
        if not GRAMMAR_FIELDS.isdisjoint(given):
            merged = {key: value for key, value in merged.items() if key not in GRAMMAR_FIELDS}
        merged |= {_ALIASES.get(key, key): value for key, value in given.items()}
    return merged


def check_sampling(sampling: Mapping[str, Any], path: str) -> SamplingParams:
    """Parameters that a conversation can be sampled with, read from the field `path`. Raises RequestError."""
    if sampling.get("use_beam_search"):
        param = f"{path}.use_beam_search"
        message = f"{param}: only false is allowed in a chat; a search has no text before its end"
        raise RequestError(message, param=param)
    params = SamplingParams.from_mapping(sampling, path=path)
    if params.logprobs is not None:
        message = f"{path}.logprobs: no log-probabilities are shown in a chat; leave it out"
        raise RequestError(message, param=f"{path}.logprobs")
    return params


def check_kept_sampling(sampling: Mapping[str, Any], path: str) -> SamplingParams:
    """Parameters that a conversation can keep for all its turns. Raises RequestError."""
    if sampling.get("temperatures"):
        param = f"{path}.temperatures"
        message = f"{param}: only for one turn, as it has an entry for each answer; a conversation keeps a temperature"
        raise RequestError(message, param=param)
    return check_sampling(sampling, path)


def read_sampling(sampling: Mapping[str, Any], n: int | None) -> SamplingParams:
    """Checked parameters; `n` of the frame wins over one in `sampling`. Raises RequestError."""
    params = check_sampling(sampling, "sampling")
    if n is None:
        return params
    if n < 1:
        raise RequestError(f"n is {n}; at least one answer is needed", param="n")
    return replace(params, n=n)


def check_beginning(beginning: AnswerText, params: SamplingParams) -> None:
    """Raise RequestError for an answer that is to go on under a grammar: that would begin anew in its middle."""
    if params.grammar is not None and beginning.token_ids:
        param = params.grammar.param
        raise RequestError(f"{param}: an answer cannot be continued under a grammar", param=param)


def with_seed(params: SamplingParams) -> SamplingParams:
    """With a fresh seed where none is given, so that every answer can be had again."""
    return params if params.seed is not None else replace(params, seed=secrets.randbits(SEED_BITS))


def new_answers(params: SamplingParams, sampling: Mapping[str, Any]) -> tuple[NewAnswer, ...]:
    """What is stored with each candidate: its seed, and the sampling in wire form that holds for it alone."""
    common = {key: value for key, value in sampling.items() if key not in ("n", "temperatures")}
    own = [{"temperature": value} for value in params.temperatures] or [{}] * params.n
    pairs = zip(candidate_seeds(params), own, strict=True)
    return tuple(NewAnswer(seed, common | temperature) for seed, temperature in pairs)


def candidate_seeds(params: SamplingParams) -> tuple[int | None, ...]:
    """Each candidate's own seed, as the engine counts it."""
    if params.seed is None:
        return (None,) * params.n
    return tuple((params.seed + index) % 2**64 for index in range(params.n))


def prompt_messages(
    system_prompt: str | None, path: Iterable[PathMessage], content: str | None
) -> list[dict[str, str]]:
    """What the model is shown: system prompt, path, new message. Answers without text are left out."""
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
    messages += [
        {"role": message.role, "content": message.content}
        for message in path
        if message.content or message.role != "assistant"
    ]
    return messages if content is None else [*messages, {"role": "user", "content": content}]


def as_full_context(error: RequestError) -> RequestError:
    """The engine's complaint about a prompt that ends with the kept beginning of an answer."""
    if error.code != "context_length_exceeded":
        return error
    message = f"nothing is left of the context to continue this answer in: {error.message}"
    return RequestError(message, param=error.param, code=error.code)


def as_frame_error(error: RequestError, content_param: str) -> RequestError:
    """The engine's complaint in terms of a frame: the prompt is `content_param`, parameters lie in `sampling`."""
    param = error.param
    if param is None or param == "n":
        return error
    if _name_of(param) in ("prompt", "messages"):
        return RequestError(error.message, param=content_param, code=error.code)
    return as_sampling_error(error)


def as_sampling_error(error: RequestError) -> RequestError:
    """The engine's complaint about parameters that lie in `sampling`."""
    prefixed = f"sampling.{(error.param or '').removeprefix('sampling.')}"
    return RequestError(error.message, param=prefixed, code=error.code)


def as_stored_error(error: RequestError, turn: Turn) -> RequestError:
    """A complaint about a turn's sampling, with the hint that it is the conversation's own where the turn says nothing of it."""
    stored = turn.conversation.sampling if turn.conversation else {}
    said = {"n": turn.n, **(turn.sampling or {})}
    name = _name_of((error.param or "").removeprefix("sampling."))
    if stored.get(name) is None or said.get(name) is not None:
        return error
    message = f"{error.message}; the conversation's stored sampling says so, change it there"
    return RequestError(message, param=error.param, code=error.code)


def _name_of(param: str) -> str:
    """The field that a path begins with."""
    return param.split(".")[0].split("[")[0]
