"""What request bodies may say, as JSON schemas, for /openapi.json.

Bodies are read by pydantic models (`api.openai_schema`, `api.responses_schema`) and, for sampling, by
`engine.sampling_params`; this file says in schemas what those readers take, and tests compare the two. Null is the same as
absent everywhere.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from engine import sampling_params as sampling
from engine.beam_params import MAX_LENGTH_PENALTY
from engine.grammar_spec import MAX_CHOICES, MAX_GRAMMAR_LENGTH

Schema = dict[str, Any]
TEMPLATE = "#/components/schemas/{model}"


def _number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def _whole(low: int, high: int | None = None) -> Schema:
    schema: Schema = {"type": "integer", "minimum": low}
    return schema if high is None else schema | {"maximum": high}


def _text(high: int | None = None) -> Schema:
    schema: Schema = {"type": "string", "minLength": 1}
    return schema if high is None else schema | {"maxLength": high}


def _list(items: Schema, low: int, high: int) -> Schema:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


FLAG: Schema = {"type": "boolean"}
STOP_STRING = _text(sampling.MAX_STOP_LENGTH)
TOKEN_ID = _whole(0)
SAMPLING: Mapping[str, Schema] = {
    "n": _whole(1),
    "temperature": _number(0, 2),
    "temperatures": _list(_number(0, 2), 0, sampling.MAX_LISTED_TOKENS),
    "top_p": _number(0, 1),
    "top_k": _whole(-1),
    "min_p": _number(0, 1),
    "repetition_penalty": _number(0.01, 10),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "max_tokens": _whole(0),
    "max_completion_tokens": _whole(0),
    "min_tokens": _whole(0),
    "seed": _whole(sampling.MIN_SEED, sampling.MAX_SEED),
    "stop": {"anyOf": [STOP_STRING, _list(STOP_STRING, 0, sampling.MAX_STOP_STRINGS)]},
    "stop_token_ids": _list(TOKEN_ID, 0, sampling.MAX_LISTED_TOKENS),
    "ignore_eos": FLAG,
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]*)$"},
        "additionalProperties": _number(-100, 100),
        "maxProperties": sampling.MAX_LISTED_TOKENS,
    },
    "top_logprobs": _whole(0, sampling.MAX_LOGPROBS),
    "cache_salt": _text(sampling.MAX_SALT_LENGTH),
    "priority": _whole(sampling.MIN_PRIORITY, sampling.MAX_PRIORITY),
    "use_beam_search": FLAG,
    "best_of": _whole(1),
    "length_penalty": _number(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
    "early_stopping": {"enum": [True, False, "never"]},
    "guided_json": {"type": ["object", "string"]},
    "guided_regex": _text(MAX_GRAMMAR_LENGTH),
    "guided_choice": _list(_text(), 1, MAX_CHOICES),
    "guided_grammar": _text(MAX_GRAMMAR_LENGTH),
    "structured_outputs": {"type": "object", "minProperties": 1},
}
IDS: Schema = {"type": "array", "items": TOKEN_ID, "minItems": 1}


def prompts(most: int) -> Schema:
    """A text, token ids, or a list of `most` of either."""
    return {"anyOf": [_text(), IDS, _list({"anyOf": [_text(), IDS]}, 1, most)]}


def body_schema(
    model: type[BaseModel],
    sampling_fields: Iterable[str],
    unsupported: Mapping[str, tuple[object, ...]],
    **finer: Schema,
) -> Schema:
    """The body of a route: the fields of its model, sampling fields, and what those that are not supported may say.

    `finer` is for fields of the model that are checked after it.
    """
    schema = model.model_json_schema(ref_template=TEMPLATE)
    required = schema.get("required", ())
    fields: Schema = {name: _or_null(SAMPLING[name]) for name in sorted(sampling_fields)}
    fields |= schema["properties"]
    fields |= {name: {"enum": [*neutral, None]} for name, neutral in unsupported.items()}
    fields |= {n: s if n in required else _or_null(s) for n, s in finer.items()}
    return schema | {"properties": fields}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}
