"""Answers that must call: the schema they are held to, and what is refused."""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from api.forced_calls import calls_schema
from api.tools import Tool, read_tool_use
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream

HELLO: Any = [{"role": "user", "content": "Weather?"}]
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}},
        "$defs": {"Place": {"type": "object", "properties": {"in": {"$ref": "#"}}}},
    },
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": WEATHER},
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


def schema_of(choice: Any, parallel: bool | None = None) -> dict[str, Any]:
    use = read_tool_use([Tool.model_validate(tool) for tool in TOOLS], choice, parallel)
    assert use is not None
    assert use.must_call
    return calls_schema(use)


def call_schema(name: str, place: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": name},
            "arguments": {"$ref": f"#/$defs/tool{place}"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def test_one_by_name() -> None:
    arguments = {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/tool1/$defs/Place"}},
        "$defs": {"Place": {"type": "object", "properties": {"in": {"$ref": "#/$defs/tool1"}}}},
    }
    assert schema_of(NAMED) == call_schema("weather", 1) | {"$defs": {"tool1": arguments}}


def test_any_of_them() -> None:
    schema = schema_of("required")
    call = {"anyOf": [call_schema("now", 0), call_schema("weather", 1)]}
    assert schema["$defs"].keys() == {"tool0", "tool1"}
    assert schema["$defs"]["tool0"] == {"type": "object"}
    assert {k: v for k, v in schema.items() if k != "$defs"} == {
        "type": "array",
        "items": call,
        "minItems": 1,
        "maxItems": 8,
    }
    assert schema_of("required", False) | {"$defs": {}} == call | {"$defs": {}}


@pytest.mark.parametrize(("choice", "said"), [("required", "[{}]"), (NAMED, "{}")])
async def test_the_answer_is_held_to_it_and_read(start: Start, choice: Any, said: str) -> None:
    call = json.dumps({"name": "weather", "arguments": {"place": {}}})
    running = await start(FakeEngine(lambda prompt, index: list(said.replace("{}", call))))
    seen = []
    submit = running.engine.submit

    def record(prompt: Any, params: Any) -> FakeStream:
        seen.append(params.grammar)
        return submit(prompt, params)

    running.engine.submit = record  # type: ignore[method-assign]
    async with AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
        completion = await client.chat.completions.create(
            model="fake", messages=HELLO, tools=TOOLS, tool_choice=choice
        )
    assert json.loads(seen[0].text) == schema_of(choice)
    (found,) = completion.choices
    assert found.finish_reason == "tool_calls"
    assert found.message.content is None
    assert found.message.tool_calls is not None
    (made,) = found.message.tool_calls
    assert made.type == "function"
    assert json.loads(made.function.arguments) == {"place": {}}


async def test_what_cannot_be_forced_is_refused(running: Running) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
    body = {"messages": HELLO, "tools": [*TOOLS, bad], "tool_choice": "required"}
    async with running.http() as http:
        response = await http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tools[2].function.parameters.type"
        body = {"messages": HELLO, "tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}
        response = await http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tool_choice"
