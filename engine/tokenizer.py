"""Text to token ids and back, around the model's fast tokenizer. Thread-safe; errors are RequestErrors by field.

Rules for a chat (`render_chat`):
- What messages are is said in `engine.messages`, what else a template is told in `engine.chat_template`.
- The order of turns is the template's affair: what it refuses is refused with its words.
- Control tokens (special ones, and added ones that the template writes) are tokens where the template puts them and
  plain text inside a content, a tool, a call or a variable, except that an assistant's message keeps added tokens that
  are not special, such as <think>. Ids of ordinary chats equal the template's own; nothing is added around them.
- A model without a chat template gets GENERIC_TEMPLATE, and in front what the model adds to plain text.

A plain prompt (`encode`) is parsed for special tokens and gets in front what the model adds: "" is often no token.
"""

import copy
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from engine.chat_template import DEFAULT_OPTIONS, TemplateOptions, map_strings, strings_of
from engine.errors import RequestError
from engine.messages import check_unicode, read_messages

GENERIC_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
PRIVATE_USE = [chr(code) for code in range(0xE000, 0xF8FF)]
SPACE_MARK = "▁"


class Tokenizer:
    """The model's vocabulary and chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._hub = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._template = tokenizer.chat_template
        decoder = json.loads(self._backend.decoder.__getstate__())
        self._bytes = _bytes_of_vocabulary(self._backend, _has_step(decoder, "ByteLevel"))
        self._longest_token = max(map(len, self._bytes))
        self._strips_first_space = _has_step(decoder, "Strip")
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._control = {
            token.content: token for token in added.values() if _is_control(token, self._template)
        }
        self._typed_control = _any_of(self._control)
        self._typed_special = _any_of(t for t, token in self._control.items() if token.special)

    @property
    def vocab_size(self) -> int:
        """Ids are 0 to vocab_size - 1; the model's own vocabulary may be larger."""
        return len(self._bytes)

    @property
    def longest_token(self) -> int:
        """Characters that a token stands for, at most: one has a byte or more."""
        return self._longest_token

    @property
    def knows_tools(self) -> bool:
        """Whether the chat template shows tools to the model."""
        return "tools" in str(self._template or "")

    def render_chat(
        self, messages: Sequence[Mapping[str, object]], options: TemplateOptions = DEFAULT_OPTIONS
    ) -> list[int]:
        """Token ids of a chat, by the rules above; raises RequestError naming `messages[i].…`."""
        chat = read_messages(messages)
        given = {"tools": list(options.tools) or None, **options.variables}
        start, end, cut = _unused_characters(strings_of([chat, given]))
        marks = (start, end)
        marked = [self._mark_message(message, marks) for message in chat]
        marked_given = map_strings(given, lambda text: self._mark(text, marks))
        text = self._render(marked, marked_given, options, cut)
        as_is = self._template is None
        if marked == chat and marked_given == given:
            return _encode(self._backend, text, add_special_tokens=as_is)
        return self._literal.encode(text, marks, add_special_tokens=as_is)

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt; raises RequestError for text with lone surrogates."""
        check_unicode(text, "prompt")
        return _encode(self._backend, text, add_special_tokens=True)

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of the beginning of an answer: nothing is added, and special tokens stay text.

        A first space is the one that vocabularies put before a first word by themselves. Raises RequestError.
        """
        check_unicode(text, "content")
        marks = _unused_characters([text])[:2]
        marked = self._mark(text, marks, is_ours=True)
        words = marked.removeprefix(" ") if self._strips_first_space else marked
        if marked == text:
            return _encode(self._backend, words, add_special_tokens=False)
        return self._literal.encode(words, marks, add_special_tokens=False)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of all ids, special tokens shown; bytes that are no UTF-8 become U+FFFD."""
        text = b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")
        return text.removeprefix(" ") if self._strips_first_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, which need not be whole characters; none outside the vocabulary."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def visible_bytes(self, token_id: int) -> bytes:
        """`token_bytes` as an answer shows them: special tokens are left out."""
        return b"" if token_id in self.special_ids else self.token_bytes(token_id)

    def _mark(self, text: str, marks: tuple[str, str], *, is_ours: bool = False) -> str:
        """The text with marks around each control token that was typed."""
        pattern = self._typed_special if is_ours else self._typed_control
        return pattern.sub(rf"{marks[0]}\g<0>{marks[1]}", text)

    def _mark_message(self, message: dict[str, Any], marks: tuple[str, str]) -> dict[str, Any]:
        is_ours = message["role"] == "assistant"
        return {
            key: value
            if key == "role"
            else map_strings(value, lambda text: self._mark(text, marks, is_ours=is_ours))
            for key, value in message.items()
        }

    def _render(
        self,
        chat: list[dict[str, Any]],
        given: dict[str, Any],
        options: TemplateOptions,
        cut: str,
    ) -> str:
        """The template's text; to continue the last message it is cut at `cut`, put behind its content."""
        if options.continue_final_message:
            chat = [*chat[:-1], chat[-1] | {"content": chat[-1]["content"] + cut}]
        try:
            rendered = self._hub.apply_chat_template(
                chat,
                chat_template=GENERIC_TEMPLATE if self._template is None else None,
                tokenize=False,
                add_generation_prompt=options.add_generation_prompt
                and not options.continue_final_message,
                **given,
            )
        except (TemplateError, TypeError) as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise RequestError(message, param="messages") from error
        text, found, _ = str(rendered).partition(cut)
        if options.continue_final_message and not found:
            message = "the model's chat template does not show the last message to its end"
            raise RequestError(message, param="continue_final_message")
        return text

    @cached_property
    def _literal(self) -> "_LiteralEncoder":
        return _LiteralEncoder(self._backend, self._control)


class _LiteralEncoder:
    """Encodes a rendered chat in which control tokens typed by people stand between two marks.

    A copy of the tokenizer reads control tokens as text and knows them by secret names instead; the template's own are
    given these names, so the text is encoded in one piece, exactly as the template's would be.
    """

    def __init__(self, backend: Backend, control: Mapping[str, AddedToken]) -> None:
        self._backend = copy.deepcopy(backend)
        self._backend.add_special_tokens(list(control))
        self._backend.encode_special_tokens = True
        secret = secrets.token_hex(8)
        self._names = {text: f"\ue000{secret}{i}\ue001" for i, text in enumerate(control)}
        self._backend.add_tokens([_renamed(control[t], name) for t, name in self._names.items()])
        self._ids = {self._id(name): self._id(text) for text, name in self._names.items()}
        characters = self._backend.get_vocab()
        self._spelled = {
            self._id(t): [characters[c] for c in t if c in characters] for t in control
        }
        self._pattern = _any_of(control).pattern

    def encode(self, text: str, marks: tuple[str, str], *, add_special_tokens: bool) -> list[int]:
        """Ids of `text`; marks that stand alone, because the template cut there, are dropped."""
        start, end = marks
        pattern = f"{start}({self._pattern}){end}|{start}|{end}|({self._pattern})"
        text = re.sub(pattern, lambda m: m[1] or (self._names[m[2]] if m[2] else ""), text)
        ids: list[int] = []
        for token_id in _encode(self._backend, text, add_special_tokens=add_special_tokens):
            if token_id in self._spelled:  # the model's own merges made it out of plain text
                ids += self._spelled[token_id]
            else:
                ids.append(self._ids.get(token_id, token_id))
        return ids

    def _id(self, token: str) -> int:
        token_id = self._backend.token_to_id(token)
        assert token_id is not None, f"{token!r} was added but has no id"
        return token_id


def _encode(backend: Backend, text: str, *, add_special_tokens: bool) -> list[int]:
    """Ids of a text. As a batch of one, because only batches let other threads run meanwhile."""
    return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


def _is_control(token: AddedToken, template: object) -> bool:
    if token.special:
        return True
    return not token.content.isspace() and token.content in str(template or "")


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of `texts` first; matches nowhere when there are none."""
    choices = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, choices)) or "(?!)")


def _unused_characters(texts: Iterable[str]) -> tuple[str, str, str]:
    """Three private-use characters that no text contains; RequestError if there are none."""
    used = set().union(*texts)
    unused = [char for char in PRIVATE_USE if char not in used][:3]
    if len(unused) < 3:
        raise RequestError("messages contain every private-use character", param="messages")
    return unused[0], unused[1], unused[2]


def _renamed(token: AddedToken, name: str) -> AddedToken:
    return AddedToken(
        name,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=False,
    )


def _has_step(decoder: dict, kind: str) -> bool:
    """Whether a decoder is of this kind or contains one that is."""
    return decoder["type"] == kind or any(
        _has_step(step, kind) for step in decoder.get("decoders", [])
    )


def _bytes_of_vocabulary(backend: Backend, is_byte_level: bool) -> list[bytes]:
    vocabulary = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    to_bytes = _byte_level_bytes if is_byte_level else _sentencepiece_bytes
    for piece, token_id in vocabulary.items():
        table[token_id] = to_bytes(piece)
    for token_id, token in backend.get_added_tokens_decoder().items():
        table[token_id] = token.content.encode()
    return table


def _byte_level_bytes(piece: str) -> bytes:
    translated = piece.translate(_BYTE_OF_CHARACTER)
    try:
        return translated.encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()


def _sentencepiece_bytes(piece: str) -> bytes:
    if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(SPACE_MARK, " ").encode()


def _byte_of_character() -> dict[int, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {0x100 + i: byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()
