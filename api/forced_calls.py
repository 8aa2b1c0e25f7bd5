"""`tool_choice` required, or a function by name: the answer is held to a JSON schema, so that any model calls properly."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from api.context import ApiContext
from api.tools import FunctionSpec, ToolUse
from engine.errors import RequestError
from engine.grammar_spec import json_grammar
from engine.sampling_params import SamplingParams

MAX_FORCED_CALLS = 8
_PARAM = "tools"


async def force_calls(context: ApiContext, params: SamplingParams, use: ToolUse) -> SamplingParams:
    """`params` with the grammar of `use`. Raises RequestError naming `tool_choice` or the place in `tools`."""
    if params.grammar is not None:
        message = f"tool_choice: {params.grammar.param} says already what the answer must be"
        raise RequestError(message, param="tool_choice")
    forced = replace(params, grammar=json_grammar(calls_schema(use), _PARAM))
    try:
        await context.engine.prepare(forced)
    except RequestError as error:
        message, param = _in_body(error.message), _in_body(error.param or _PARAM)
        raise RequestError(message, param=param, code=error.code) from None
    return forced


def calls_schema(use: ToolUse) -> dict[str, Any]:
    """JSON Schema of an answer that does nothing but call: one call, or a list of MAX_FORCED_CALLS at most."""
    named = list(zip(use.places, use.functions, strict=True))
    calls = [_call_schema(place, function) for place, function in named]
    call = calls[0] if len(calls) == 1 else {"anyOf": calls}
    answer = call
    if use.is_parallel:
        answer = {"type": "array", "items": call, "minItems": 1, "maxItems": MAX_FORCED_CALLS}
    arguments = {f"tool{place}": _arguments_schema(place, function) for place, function in named}
    return answer | {"$defs": arguments}


def _call_schema(place: int, function: FunctionSpec) -> dict[str, Any]:
    properties = {
        "name": {"const": function.name},
        "arguments": {"$ref": f"#/$defs/tool{place}"},
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _arguments_schema(place: int, function: FunctionSpec) -> dict[str, Any]:
    schema = {"type": "object"} | (function.parameters or {})
    if schema["type"] != "object":
        param = f"tools[{place}].function.parameters.type"
        raise RequestError(f"{param}: only 'object' is allowed", param=param)
    return _moved(schema, f"#/$defs/tool{place}")


def _moved(value: Any, root: str) -> Any:
    """A schema that stands at `root` of another: its references to itself begin there."""
    if isinstance(value, list):
        return [_moved(item, root) for item in value]
    if not isinstance(value, Mapping):
        return value
    moved = {key: _moved(item, root) for key, item in value.items()}
    if isinstance(reference := moved.get("$ref"), str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved


def _in_body(text: str) -> str:
    """A place in the schema as the place in the body that it came from."""
    return re.sub(r"tools\.\$defs\.tool(\d+)", r"tools[\1].function.parameters", text)
