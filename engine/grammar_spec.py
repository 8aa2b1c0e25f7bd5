"""What an answer must look like: a JSON schema, a regular expression, a choice of texts or a Lark grammar.

`GrammarSpec` is what a request asks for, as text; `read_grammar` reads it from the wire form. `Grammar` and `TokenMatcher`
are what the engine makes of it (`engine.grammar`), as the scheduling half sees them.

Wire form, one of: `guided_json` (a schema, as an object or as JSON text), `guided_regex`, `guided_choice` (a list of
texts), `guided_grammar` (Lark), or `structured_outputs` with one of `json`, `regex`, `choice`, `grammar`, `json_object`.
"""

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from engine.errors import RequestError

MAX_GRAMMAR_LENGTH = 2**17
MAX_CHOICES = 1024
GRAMMAR_FIELDS = frozenset(
    {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"}
)


class GrammarKind(StrEnum):
    """How `GrammarSpec.text` is to be read."""

    JSON = "json"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "grammar"


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar as asked for; `param` names the field it came from in errors and does not count in comparisons.

    `text` is a schema or a list of texts in JSON, a regular expression, or a Lark grammar.
    """

    kind: GrammarKind
    text: str
    param: str = field(compare=False)


class TokenMatcher(Protocol):
    """What one sequence may draw: a function of the grammar and of its output so far, which only ever grows."""

    def allowed(self, output_token_ids: Sequence[int]) -> bytes:
        """A bit for each token id, lowest first: whether it may come next. Raises GrammarError."""
        ...


class Grammar(Protocol):
    """A compiled grammar, shared by all that follow it."""

    def matcher(self) -> TokenMatcher:
        """A matcher at the beginning of an answer."""
        ...


def json_grammar(schema: object, param: str) -> GrammarSpec:
    """The JSON values that a schema (an object, or its JSON text) allows. Raises RequestError."""
    if isinstance(schema, str):
        schema = _parse_json(schema, param)
    if not isinstance(schema, Mapping):
        raise _refusal(param, "a JSON schema, which is an object", schema)
    try:
        text = json.dumps(schema, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestError(f"{param}: not a JSON document: {error}", param=param) from error
    return _checked(GrammarSpec(GrammarKind.JSON, text, param))


def read_grammar(given: Mapping[str, object], prefix: str) -> GrammarSpec | None:
    """What the fields of GRAMMAR_FIELDS in `given` ask for; `prefix` stands before their names in errors.

    Raises RequestError, also for more than one of them.
    """
    names = [name for name in given if name in GRAMMAR_FIELDS]
    if len(names) > 1:
        raise _second(prefix + names[1], names[0])
    if not names:
        return None
    name = names[0]
    if name == "structured_outputs":
        return _read_structured_outputs(given[name], prefix + name)
    return _READERS[name.removeprefix("guided_")](given[name], prefix + name)


def _read_structured_outputs(value: object, path: str) -> GrammarSpec:
    allowed = f"an object with one of {', '.join(_READERS)}"
    if not isinstance(value, Mapping):
        raise _refusal(path, allowed, value)
    given = {name: item for name, item in value.items() if item is not None}
    for i, name in enumerate(given):
        if name not in _READERS:
            message = f"{path}.{name} is not supported; {allowed}"
            raise RequestError(message, param=f"{path}.{name}")
        if i:
            raise _second(f"{path}.{name}", next(iter(given)))
    if not given:
        raise _refusal(path, allowed, dict(value))
    ((name, item),) = given.items()
    return _READERS[name](item, f"{path}.{name}")


def _read_json_object(value: object, path: str) -> GrammarSpec:
    if value is not True:
        raise _refusal(path, "true", value)
    return json_grammar({"type": "object"}, path)


def _read_regex(value: object, path: str) -> GrammarSpec:
    return _read_text(GrammarKind.REGEX, value, path)


def _read_lark(value: object, path: str) -> GrammarSpec:
    return _read_text(GrammarKind.LARK, value, path)


def _read_text(kind: GrammarKind, value: object, path: str) -> GrammarSpec:
    if not isinstance(value, str) or not value:
        raise _refusal(path, "a string that is not empty", value)
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise _refusal(path, "text without lone surrogates", value)
    return _checked(GrammarSpec(kind, value, path))


def _read_choice(value: object, path: str) -> GrammarSpec:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICES:
        raise _refusal(path, f"a list of 1 to {MAX_CHOICES} strings", value)
    for i, text in enumerate(value):
        _read_text(GrammarKind.CHOICE, text, f"{path}[{i}]")
    return _checked(GrammarSpec(GrammarKind.CHOICE, json.dumps(value), path))


_READERS: Mapping[str, Callable[[object, str], GrammarSpec]] = {
    "json": json_grammar,
    "regex": _read_regex,
    "choice": _read_choice,
    "grammar": _read_lark,
    "json_object": _read_json_object,
}


def _parse_json(text: str, param: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{param}: not a JSON document: {error}", param=param) from error


def _checked(spec: GrammarSpec) -> GrammarSpec:
    if len(spec.text) > MAX_GRAMMAR_LENGTH:
        message = f"{spec.param} has {len(spec.text)} characters; at most {MAX_GRAMMAR_LENGTH}"
        raise RequestError(message, param=spec.param)
    return spec


def _second(param: str, first: str) -> RequestError:
    return RequestError(f"{param}: {first} says already what the answer must be", param=param)


def _refusal(param: str, allowed: str, value: object) -> RequestError:
    message = f"{param}: {reprlib.repr(value)} is not allowed; {allowed}"
    return RequestError(message, param=param)
