"""Compiles grammars for a model's vocabulary, and follows an answer through one, with llguidance.

Compiling costs up to a second for the first grammar, then mostly milliseconds, and is kept for the latest MAX_COMPILED. It happens in
a thread of its own with a deep stack: a chain of rules is followed by recursion, and MAX_GRAMMAR_LENGTH is as long as it gets.

JSON: keys come in the order of `properties`; between tokens stands nothing, a space, or a line break with its indent, so that
an answer cannot end in whitespace without end. Objects are as open as the schema says. `oneOf` works where its branches exclude each
other. A keyword that is not enforced is refused. Regular expressions are Rust's, for the whole answer. Lark is as llguidance reads it.

Which tokens are legal is decided over bytes, so a text can be spelled in any way the vocabulary has, except that a text without
alternative is spelled as the tokenizer does. End tokens are legal where the grammar accepts, and alone once nothing can follow.
Control tokens are never legal.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Protocol

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from engine.errors import GrammarError, RequestError
from engine.grammar_spec import GrammarKind, GrammarSpec

MAX_COMPILED = 64
MAX_ERROR_LENGTH = 500
MAX_PLACES_TRIED = 200
COMPILER_STACK_BYTES = 2**28
WHITESPACE = r"( |\n {0,32})?"
_NO_DETAILS = "<non-verbose/>"
_DEAD_ENDS = ("NoExtension", "NoExtensionBias")

_MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")


class AnswerCodec(Protocol):
    """The part of a tokenizer that grammars need."""

    def visible_bytes(self, token_id: int, /) -> bytes:
        """What a token adds to an answer's text; nothing for a control token."""
        ...

    def encode_answer(self, text: str, /) -> list[int]:
        """Token ids of a text that the model itself might write."""
        ...


class GrammarMatcher:
    """One answer's way through a grammar (`engine.grammar_spec.TokenMatcher`). One thread at a time."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._num_read = 0

    def allowed(self, output_token_ids: Sequence[int]) -> bytes:
        """A bit for each token id, lowest first: whether it may come next. Raises GrammarError."""
        self._matcher.consume_tokens(list(output_token_ids[self._num_read :]))
        self._num_read = len(output_token_ids)
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarError(_shorten(self._matcher.get_error()))
        return mask


class CompiledGrammar:
    """A grammar for one vocabulary (`engine.grammar_spec.Grammar`)."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def matcher(self) -> GrammarMatcher:
        """A matcher at the beginning of an answer."""
        return GrammarMatcher(self._matcher.deep_copy())


class GrammarCompiler:
    """Compiles for one model. Thread-safe."""

    def __init__(self, codec: AnswerCodec, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._codec, self._vocab_size = codec, vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._compiled: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar-compiler")

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """The compiled grammar. Raises RequestError that names the field, and the place in it."""
        return self.compile_soon(spec).result()

    def compile_soon(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """`compile` in another thread; done at once for a grammar that is known."""
        with self._lock:
            known = self._compiled.get(spec)
            if known is None:
                return self._submit(spec)
            self._compiled.move_to_end(spec)
        future: Future[CompiledGrammar] = Future()
        future.set_result(known)
        return future

    def close(self) -> None:
        """End the thread; nothing can be compiled any more."""
        self._pool.shutdown(wait=False)

    def _submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        before = threading.stack_size(COMPILER_STACK_BYTES)
        try:
            return self._pool.submit(self._compile, spec)
        finally:
            threading.stack_size(before)

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if not self._eos_token_ids:
            message = f"{spec.param}: this model has no token that ends an answer"
            raise RequestError(message, param=spec.param)
        matcher = self._matcher(spec.kind, spec.text)
        matcher.compute_bitmask()
        if matcher.is_error():
            raise self._refusal(spec, matcher.get_error())
        compiled = CompiledGrammar(matcher)
        with self._lock:
            self._compiled[spec] = compiled
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return compiled

    def _matcher(self, kind: GrammarKind, text: str) -> LLMatcher:
        limits = LLParserLimits(verbose_errors=False)
        return LLMatcher(self._tokenizer, _source(kind, text), log_level=0, limits=limits)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        vocabulary = _Vocabulary(self._codec, self._vocab_size, self._eos_token_ids)
        vocabulary.tokenizer = LLTokenizer(
            TokenizerWrapper(vocabulary), n_vocab=self._vocab_size, eos_token=self._eos_token_ids
        )
        return vocabulary.tokenizer

    def _refusal(self, spec: GrammarSpec, error: str) -> RequestError:
        param = spec.param
        if spec.kind is GrammarKind.JSON:
            param += self._place(json.loads(spec.text), error)
        message = f"{param}: this {spec.kind} cannot be compiled: {_shorten(error)}"
        return RequestError(message, param=param)

    def _place(self, schema: dict[str, Any], error: str) -> str:
        """The path of the innermost subschema that alone gives the same error, found by trying."""
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        path, tries = "", 0
        children = _subschemas(schema)
        while tries < MAX_PLACES_TRIED:
            step, child = next(children, ("", None))
            if child is None:
                break
            tries += 1
            matcher = self._matcher(GrammarKind.JSON, json.dumps(definitions | child))
            matcher.compute_bitmask()
            if matcher.get_error() == error:
                path, children = path + step, _subschemas(child)
        return path


class _Vocabulary:
    """A model's vocabulary as llguidance reads one: a first byte 0xFF, which no text has, marks a control token."""

    tokenizer: LLTokenizer | None = None

    def __init__(self, codec: AnswerCodec, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._codec = codec
        shown = [codec.visible_bytes(token_id) for token_id in range(vocab_size)]
        self.tokens = [text or b"\xff<%d>" % token_id for token_id, text in enumerate(shown)]
        self.special_token_ids = [token_id for token_id, text in enumerate(shown) if not text]
        self.bos_token_id = None
        self.eos_token_id = eos_token_ids[0]

    def __call__(self, utf8: bytes) -> list[int]:
        """Token ids that spell a text byte by byte: the tokenizer's own, or the longest that fit where those do not."""
        if self.tokenizer is None:
            return []
        token_ids = self._codec.encode_answer(utf8.decode())
        is_exact = b"".join(map(self._codec.visible_bytes, token_ids)) == utf8
        return token_ids if is_exact else self.tokenizer.greedy_tokenize(utf8.decode())


def _source(kind: GrammarKind, text: str) -> str:
    match kind:
        case GrammarKind.JSON:
            return LLMatcher.grammar_from_json_schema(
                text, overrides={"whitespace_pattern": WHITESPACE}
            )
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(_without_anchors(text))
        case GrammarKind.CHOICE:
            return LLMatcher.grammar_from_lark(
                "start: " + " | ".join(map(json.dumps, json.loads(text)))
            )
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(text)


def _without_anchors(regex: str) -> str:
    """The whole answer must match, so anchors at the ends say nothing new; llguidance would match nothing with them."""
    regex = regex.removeprefix("^")
    body = regex.removesuffix("$")
    num_escapes = len(body) - len(body.rstrip("\\"))
    return regex if num_escapes % 2 else body


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a schema consists of, each with its path; definitions last, as most are reached by reference."""
    for key in _SCHEMAS:
        if isinstance(schema.get(key), dict):
            yield f".{key}", schema[key]
    for key in _LISTS_OF_SCHEMAS:
        items = schema.get(key)
        for i, child in enumerate(items if isinstance(items, list) else ()):
            if isinstance(child, dict):
                yield f".{key}[{i}]", child
    for key in _MAPS_OF_SCHEMAS:
        named = schema.get(key)
        for name, child in named.items() if isinstance(named, dict) else ():
            if isinstance(child, dict):
                yield f".{key}.{name}", child


def _shorten(error: str) -> str:
    text = error.removesuffix(_NO_DETAILS).strip()
    if text in _DEAD_ENDS:
        return "no text matches it"
    return text if len(text) <= MAX_ERROR_LENGTH else text[:MAX_ERROR_LENGTH] + "…"
