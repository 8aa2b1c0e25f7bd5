"""Even a small model calls properly when it must: the built-in one, drawn at temperature 1."""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.e2e.app_process import AppProcess

pytestmark = pytest.mark.model
CITY: Any = {"type": "string", "enum": ["Paris", "Łódź", "Rome"]}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": CITY,
                    "days": {"type": "integer", "minimum": 1, "maximum": 7},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "clock",
            "description": "Tells the time of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"$ref": "#/$defs/City"}},
                "required": ["city"],
                "additionalProperties": False,
                "$defs": {"City": CITY},
            },
        },
    },
]
ASKED: Any = [{"role": "user", "content": "How is the weather in Rome, and what time is it there?"}]
NAMED: Any = {"type": "function", "function": {"name": "clock"}}


def check(name: str, arguments: str) -> None:
    read = json.loads(arguments)
    assert read.pop("city") in CITY["enum"]
    assert name in ("weather", "clock")
    if name == "weather":
        assert 1 <= read.pop("days") <= 7
    assert read == {}


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_every_answer_calls_by_its_schema(model_server: AppProcess, choice: Any) -> None:
    base_url = model_server.url + "/v1"
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        completion = await client.chat.completions.create(
            model="smollm2-135m", messages=ASKED, tools=TOOLS, tool_choice=choice, n=6, seed=1
        )
        stream = await client.chat.completions.create(
            model="smollm2-135m",
            messages=ASKED,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
            stream=True,
            seed=2,
        )
        calls = [
            c
            for chunk in [x async for x in stream]
            for c in chunk.choices[0].delta.tool_calls or []
        ]
    for made in completion.choices:
        assert made.finish_reason == "tool_calls"
        assert made.message.content is None
        assert made.message.tool_calls
        for call in made.message.tool_calls:
            assert call.type == "function"
            check(call.function.name, call.function.arguments)
            assert choice == "required" or call.function.name == "clock"
    opened, filled = calls
    assert opened.function is not None
    assert filled.function is not None
    check(str(opened.function.name), str(filled.function.arguments))
