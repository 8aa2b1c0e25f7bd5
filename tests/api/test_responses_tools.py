"""Functions in /v1/responses, as OpenAI's own client calls them: whole, streamed, answered, forced."""

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from api.responses_items import OutputItems
from api.tool_calls import ToolCall
from engine.sampling_params import SamplingParams
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Łódź"}}</tool_call>'
SECOND = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
TIME: dict[str, Any] = {"type": "function", "name": "time"}
TOOLS: Any = [WEATHER, TIME]


def client_of(running: Running) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0, timeout=10)


def saying(text: str) -> FakeEngine:
    return FakeEngine(lambda prompt, index: list(text))


async def test_calls_are_items_of_the_output(start: Start) -> None:
    running = await start(saying(f"Let me see. {CALL}\n{SECOND}"))
    async with client_of(running) as client:
        response = await client.responses.create(model="fake", input="hello", tools=TOOLS)
    said, *calls = response.output
    assert said.type == "message"
    assert (response.status, response.output_text) == ("completed", "Let me see. ")
    shown = [(c.name, c.arguments, c.status) for c in calls if c.type == "function_call"]
    assert shown == [("weather", '{"city": "Łódź"}', "completed"), ("time", "{}", "completed")]
    assert len({c.call_id for c in calls if c.type == "function_call"}) == 2
    assert [tool.name for tool in response.tools if tool.type == "function"] == ["weather", "time"]
    assert response.tool_choice == "auto"


async def test_only_the_first_call_counts_without_parallel_calls(start: Start) -> None:
    running = await start(saying(CALL + SECOND))
    async with client_of(running) as client:
        response = await client.responses.create(
            model="fake", input="a", tools=TOOLS, parallel_tool_calls=False
        )
    assert [item.type for item in response.output] == ["function_call"]
    assert response.parallel_tool_calls is False


async def test_no_tools_no_calls(start: Start) -> None:
    running = await start(saying(CALL))
    async with client_of(running) as client:
        for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            response = await client.responses.create(model="fake", input="a", **fields)
            assert response.output_text == CALL


async def test_an_answer_and_what_came_of_its_calls_go_back(start: Start) -> None:
    engine = saying(CALL + SECOND)
    engine.template_knows_tools = True
    running = await start(engine)
    async with client_of(running) as client:
        history: Any = [{"role": "user", "content": "hello"}]
        first = await client.responses.create(model="fake", input=history, tools=TOOLS)
        history += first.output
        for item in first.output:
            assert item.type == "function_call"
            output = {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
            history.append(output)
        await client.responses.create(model="fake", input=history, tools=TOOLS)
    messages, options = engine.rendered[-1]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    calls = messages[1]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "weather", "arguments": {"city": "Łódź"}},
        {"name": "time", "arguments": {}},
    ]
    assert [message["tool_call_id"] for message in messages[2:]] == [call["id"] for call in calls]
    assert [tool["function"]["name"] for tool in options.tools] == ["weather", "time"]


async def test_a_model_whose_template_knows_no_tools_is_told_in_words(start: Start) -> None:
    running = await start(saying("ok"))
    items: Any = [
        {"role": "assistant", "content": "wait"},
        {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "noon"}],
        },
    ]
    async with client_of(running) as client:
        await client.responses.create(
            model="fake", input=items, instructions="Be brief.", tools=TOOLS
        )
    system, said, result = running.engine.rendered[0][0]
    assert system["content"].startswith("Be brief.\n\nYou can call functions.")
    assert '{"name": "time"}' in system["content"]
    assert said["content"].startswith('wait\n<tool_call>{"name": "time"')
    assert result == {"role": "user", "content": "<tool_response>\nnoon\n</tool_response>"}


async def test_the_events_of_text_and_calls_in_their_order(start: Start) -> None:
    running = await start(saying("Hm" + CALL + SECOND))
    async with client_of(running) as client:
        stream = await client.responses.create(model="fake", input="a", tools=TOOLS, stream=True)
        events = [event async for event in stream]
    call_events = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    kinds = [event.type for event in events]
    assert [k for k in kinds if k != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *call_events,
        *call_events,
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    added = [event for event in events if event.type == "response.output_item.added"]
    assert [event.output_index for event in added] == [0, 1, 2]
    deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert [json.loads(event.delta) for event in deltas] == [{"city": "Łódź"}, {}]
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.id for item in last.response.output] == [event.item.id for event in added]


class Weather(BaseModel):
    """The weather of a city."""

    city: str


async def test_openais_helpers_parse_calls(start: Start) -> None:
    running = await start(saying('[{"name": "Weather", "arguments": {"city": "Oslo"}}]'))
    tools: Any = [openai.pydantic_function_tool(Weather)]
    flat: Any = [{"type": "function", **tools[0]["function"]}]
    async with client_of(running) as client:
        chat = await client.chat.completions.parse(
            model="fake", messages=[{"role": "user", "content": "a"}], tools=tools
        )
        async with client.responses.stream(model="fake", input="a", tools=flat) as stream:
            response = await stream.get_final_response()
    assert chat.choices[0].message.tool_calls is not None
    assert chat.choices[0].message.tool_calls[0].function.parsed_arguments == Weather(city="Oslo")
    (item,) = response.output
    assert item.type == "function_call"
    assert json.loads(item.arguments) == {"city": "Oslo"}


@pytest.mark.parametrize(
    ("choice", "kind"), [("required", "array"), ({"type": "function", "name": "time"}, "object")]
)
async def test_a_forced_call_is_held_to_a_grammar(start: Start, choice: Any, kind: str) -> None:
    running = await start(saying('{"name": "time", "arguments": {}}'))
    seen: list[SamplingParams] = []
    submit = running.engine.submit

    def record(prompt: Any, params: SamplingParams) -> FakeStream:
        seen.append(params)
        return submit(prompt, params)

    running.engine.submit = record  # type: ignore[method-assign]
    async with client_of(running) as client:
        response = await client.responses.create(
            model="fake", input="a", tools=TOOLS, tool_choice=choice
        )
    assert [item.type for item in response.output] == ["function_call"]
    assert response.model_dump()["tool_choice"] == choice
    assert seen[0].grammar is not None
    assert json.loads(seen[0].grammar.text)["type"] == kind


def test_a_message_goes_on_after_a_call() -> None:
    items = OutputItems()
    for events in (items.say("a"), items.call(ToolCall("f", "{}")), items.say("b"), items.say("c")):
        list(events)
    list(items.end("incomplete"))
    shown = [(item["type"], item["status"]) for item in items.items]
    assert shown == [
        ("message", "completed"),
        ("function_call", "completed"),
        ("message", "incomplete"),
    ]
    assert items.items[2]["content"][0]["text"] == "bc"
