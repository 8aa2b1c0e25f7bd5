"""`text` of /v1/responses: any text, any JSON object, or the JSON that a schema allows. A schema is always enforced."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.errors import RequestError
from engine.grammar_spec import GrammarSpec, json_grammar
from engine.sampling_params import SamplingParams

_FIELD = "text.format"
_KINDS = ("text", "json_object", "json_schema")


def with_format(params: SamplingParams, text: Mapping[str, Any] | None) -> SamplingParams:
    """`params` with the grammar of `text`, if it asks for one. Raises RequestError that names the field by path."""
    given = {name: value for name, value in (text or {}).items() if value is not None}
    if given.get("verbosity", "medium") != "medium":
        raise _fault("text.verbosity", "only 'medium' is supported")
    grammar = _read(given["format"]) if "format" in given else None
    if grammar is None:
        return params
    if params.grammar is not None:
        raise _fault(_FIELD, f"{params.grammar.param} says already what the answer must be")
    return replace(params, grammar=grammar)


def _read(raw: object) -> GrammarSpec | None:
    if not isinstance(raw, Mapping):
        raise _fault(_FIELD, "an object is required")
    kind = raw.get("type")
    if kind not in _KINDS:
        raise _fault(f"{_FIELD}.type", f"one of {', '.join(_KINDS)} is required")
    if kind == "text":
        return None
    if kind == "json_object":
        return json_grammar({"type": "object"}, _FIELD)
    if not isinstance(schema := raw.get("schema"), Mapping):
        raise _fault(f"{_FIELD}.schema", "a JSON schema is required")
    return json_grammar(schema, f"{_FIELD}.schema")


def _fault(path: str, what: str) -> RequestError:
    return RequestError(f"{path}: {what}", param=path)
