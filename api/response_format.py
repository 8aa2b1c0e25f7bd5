"""OpenAI's `response_format`: any text, any JSON object, or the JSON that a schema allows.

A schema is always enforced, so `strict` changes nothing, and `name` and `description` are for people.
"""

from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError
from engine.grammar_spec import GrammarSpec, json_grammar

_FIELD = "response_format"
_KEYS = {"text": (), "json_object": (), "json_schema": ("json_schema",)}
_SCHEMA_KEYS = ("name", "description", "schema", "strict")


def read_response_format(raw: Mapping[str, Any] | None) -> GrammarSpec | None:
    """The grammar of an answer; None for text. Raises RequestError that names the field by path."""
    if raw is None:
        return None
    kind = raw.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        allowed = ", ".join(_KEYS)
        message = f"{_FIELD}.type: {kind!r} is not allowed; one of {allowed}"
        raise RequestError(message, param=f"{_FIELD}.type")
    _check_keys(raw, _FIELD, ("type", *_KEYS[kind]))
    match kind:
        case "json_object":
            return json_grammar({"type": "object"}, _FIELD)
        case "json_schema":
            return _read_json_schema(raw.get("json_schema"), f"{_FIELD}.json_schema")
    return None


def _read_json_schema(value: object, path: str) -> GrammarSpec:
    if not isinstance(value, Mapping):
        raise RequestError(f"{path}: an object with a schema is required", param=path)
    _check_keys(value, path, _SCHEMA_KEYS)
    if not isinstance(value.get("strict", False), bool | None):
        raise RequestError(f"{path}.strict: true or false is allowed", param=f"{path}.strict")
    schema = value.get("schema")
    if not isinstance(schema, Mapping):
        raise RequestError(f"{path}.schema: a JSON schema is required", param=f"{path}.schema")
    return json_grammar(schema, f"{path}.schema")


def _check_keys(given: Mapping[str, Any], path: str, known: tuple[str, ...]) -> None:
    for name, value in given.items():
        if name not in known and value is not None:
            raise RequestError(f"{path}.{name} is not supported", param=f"{path}.{name}")
