"""Conversations in request bodies, as JSON schemas, for /openapi.json; `api.chat_messages` and `api.responses_input` read them."""

from typing import Any

Schema = dict[str, Any]


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties}


_TEXT: Schema = {"type": "string"}
_PART = _object(["type", "text"], type={"enum": ["text"]}, text=_TEXT)
_RESPONSES_PART = _object(
    ["type", "text"], type={"enum": ["input_text", "output_text"]}, text=_TEXT
)
_RESPONSES_CONTENT: Schema = {
    "anyOf": [_TEXT, {"type": "array", "items": _RESPONSES_PART, "minItems": 1}]
}
_CONTENT: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _PART, "minItems": 1}]}
_FUNCTION = _object(["name", "arguments"], name=_TEXT, arguments=_TEXT)
_CALL = _object(["id", "function"], id=_TEXT, type={"enum": ["function"]}, function=_FUNCTION)
MESSAGES: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {
        "anyOf": [
            _object(
                ["role", "content"],
                role={"enum": ["system", "developer", "user"]},
                content=_CONTENT,
            ),
            _object(
                ["role"],
                role={"enum": ["assistant"]},
                content={"anyOf": [_CONTENT, {"type": "null"}]},
                tool_calls={"type": ["array", "null"], "items": _CALL},
            ),
            _object(
                ["role", "content", "tool_call_id"],
                role={"enum": ["tool"]},
                content=_CONTENT,
                tool_call_id=_TEXT,
            ),
        ]
    },
}
RESPONSES_INPUT: Schema = {
    "anyOf": [
        _TEXT,
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "anyOf": [
                    _object(
                        ["role", "content"],
                        type={"enum": ["message"]},
                        role={"enum": ["user", "assistant", "system", "developer"]},
                        content=_RESPONSES_CONTENT,
                    ),
                    _object(
                        ["type", "call_id", "name", "arguments"],
                        type={"enum": ["function_call"]},
                        call_id=_TEXT,
                        name=_TEXT,
                        arguments=_TEXT,
                    ),
                    _object(
                        ["type", "call_id", "output"],
                        type={"enum": ["function_call_output"]},
                        call_id=_TEXT,
                        output=_RESPONSES_CONTENT,
                    ),
                ]
            },
        },
    ]
}
RESPONSES_TEXT = _object(
    [],
    verbosity={"enum": ["medium", None]},
    format={
        "anyOf": [
            _object(["type"], type={"enum": ["text", "json_object"]}),
            _object(["type", "schema"], type={"enum": ["json_schema"]}, schema={"type": "object"}),
            {"type": "null"},
        ]
    },
)
