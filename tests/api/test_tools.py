"""Tools in chats: what the model is shown, and what its calls look like to OpenAI's client."""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from api.tools import Tool, as_text, read_tool_use
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine

HELLO: Any = [{"role": "user", "content": "Weather?"}]
FUNCTION = {
    "name": "weather",
    "description": "Tells it.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
SAID = 'I ask. <tool_call>{"name": "weather", "arguments": {"city": "Łódź"}}</tool_call>'


def saying(*texts: str) -> FakeEngine:
    """Candidate i says texts[i], a letter a token."""
    return FakeEngine(lambda prompt, index: list(texts[index]))


def client_of(running: Running) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0, timeout=10)


async def test_calls_come_whole(start: Start) -> None:
    running = await start(saying(SAID, "No need."))
    async with client_of(running) as client:
        completion = await client.chat.completions.create(
            model="fake", messages=HELLO, tools=TOOLS, n=2
        )
    called, plain = completion.choices
    assert (called.finish_reason, called.message.content) == ("tool_calls", "I ask. ")
    assert called.message.tool_calls is not None
    (call,) = called.message.tool_calls
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Łódź"},
    )
    assert (plain.finish_reason, plain.message.content, plain.message.tool_calls) == (
        "stop",
        "No need.",
        None,
    )


async def test_calls_are_streamed(start: Start) -> None:
    twice = SAID.replace("I ask. ", "") + SAID.replace("I ask. ", "\n")
    running = await start(saying(SAID, twice))
    contents, ids, arguments = {0: "", 1: ""}, {}, {}
    ends: dict[int, str] = {}
    async with client_of(running) as client:
        stream = await client.chat.completions.create(
            model="fake", messages=HELLO, tools=TOOLS, n=2, stream=True
        )
        async for chunk in stream:
            (choice,) = chunk.choices
            assert choice.index not in ends
            contents[choice.index] += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                where = (choice.index, call.index)
                assert call.function is not None
                if call.id:
                    ids[where], arguments[where] = call.id, ""
                    assert (call.type, call.function.name) == ("function", "weather")
                arguments[where] += call.function.arguments or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert contents == {0: "I ask. ", 1: ""}
    assert ends == {0: "tool_calls", 1: "tool_calls"}
    assert set(arguments) == {(0, 0), (1, 0), (1, 1)}
    assert {json.loads(text)["city"] for text in arguments.values()} == {"Łódź"}
    assert len(set(ids.values())) == 3


async def test_openais_helper_for_streams_understands_them(start: Start) -> None:
    running = await start(saying(SAID))
    async with (
        client_of(running) as client,
        client.chat.completions.stream(model="fake", messages=HELLO, tools=TOOLS) as stream,
    ):
        completion = await stream.get_final_completion()
    calls = completion.choices[0].message.tool_calls
    assert calls is not None
    assert json.loads(calls[0].function.arguments) == {"city": "Łódź"}


async def test_an_answer_cut_off_inside_a_call_is_text(start: Start) -> None:
    running = await start(saying(SAID))
    async with client_of(running) as client:
        completion = await client.chat.completions.create(
            model="fake", messages=HELLO, tools=TOOLS, max_tokens=30
        )
    (choice,) = completion.choices
    assert (choice.finish_reason, choice.message.content) == ("length", SAID[:30])


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}])
async def test_without_tools_text_is_text(start: Start, fields: dict[str, Any]) -> None:
    running = await start(saying(SAID))
    async with running.http() as http:
        response = await http.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    message = response.json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": SAID, "refusal": None}
    assert running.engine.rendered[0][0] == HELLO


CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "X"}'},
}
HISTORY: Any = [
    {"role": "system", "content": "Be brief."},
    *HELLO,
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL | {"id": "c2"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "sun"}]},
]


@pytest.mark.parametrize("knows_tools", [False, True])
async def test_what_the_model_is_shown(start: Start, knows_tools: bool) -> None:
    engine = saying("It rains.")
    engine.template_knows_tools = knows_tools
    running = await start(engine)
    body = {"messages": HISTORY, "tools": TOOLS}
    async with running.http() as http:
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        (model,) = (await http.get("/v1/models")).json()["data"]
    ((messages, options),) = engine.rendered
    assert model["tools"] == ("template" if knows_tools else "prompt")
    if knows_tools:
        assert list(options.tools) == TOOLS
        read = {"name": "weather", "arguments": {"city": "X"}}
        calls = [{"id": i, "type": "function", "function": read} for i in ("c1", "c2")]
        assert messages[2] == {"role": "assistant", "content": "", "tool_calls": calls}
        assert messages[3:] == [
            {"role": "tool", "content": "rain", "tool_call_id": "c1"},
            {"role": "tool", "content": "sun", "tool_call_id": "c2"},
        ]
    else:
        assert options.tools == ()
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
        assert messages[0]["content"].startswith("Be brief.\n\nYou can call functions.")
        assert json.dumps(FUNCTION) in messages[0]["content"]
        line = '<tool_call>{"name": "weather", "arguments": {"city": "X"}}</tool_call>'
        assert messages[2]["content"] == f"{line}\n{line}"
        assert messages[3]["content"] == (
            "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>"
        )


def test_instructions_open_a_chat_without_a_system_turn() -> None:
    use = read_tool_use([Tool.model_validate(TOOLS[0])], "auto", False)
    assert use is not None
    first, second = as_text(HELLO, use)
    assert first["role"] == "system"
    assert "and nothing else, once. " in first["content"]
    assert second == HELLO[0]
