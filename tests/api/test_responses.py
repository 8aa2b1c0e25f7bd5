"""/v1/responses through OpenAI's own client, and with plain HTTP for what it hides."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from pydantic import BaseModel

from engine.outputs import CandidateFinished, Failure, FinishReason
from engine.sampling_params import SamplingParams
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream

ANSWER = "".join(f"word0-{i} " for i in range(12))
PATH = "/v1/responses"


@pytest.fixture
async def client(running: Running) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=running.url + "/v1", api_key="none", max_retries=0, timeout=10
    ) as openai:
        yield openai


async def test_a_text_is_answered(client: AsyncOpenAI, running: Running) -> None:
    response = await client.responses.create(
        model="fake", input="hello", instructions="Be brief.", metadata={"a": "b"}, store=True
    )
    assert (response.status, response.output_text) == ("completed", ANSWER)
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    assert (response.error, response.incomplete_details) == (None, None)
    assert response.model_dump()["store"] is False
    prompt = len("<system>Be brief.\n<user>hello\n")
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (prompt, 12)
    assert usage.total_tokens == prompt + 12
    assert usage.input_tokens_details.cached_tokens == 0
    (item,) = response.output
    assert item.type == "message"
    assert item.status == "completed"


async def test_messages_and_the_limit(client: AsyncOpenAI, running: Running) -> None:
    parts: Any = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    answer: Any = [{"type": "output_text", "text": "c"}]
    items: Any = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": parts},
        {"type": "message", "role": "assistant", "content": answer},
        {"role": "user", "content": "e"},
    ]
    response = await client.responses.create(
        model="fake", input=items, instructions="i", max_output_tokens=3, temperature=0.5
    )
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "word0-0 word0-1 word0-2 "
    assert (response.temperature, response.max_output_tokens) == (0.5, 3)
    assert running.engine.rendered[0][0] == [
        {"role": "system", "content": "i\n\nd"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "e"},
    ]


async def test_the_events_of_a_stream_in_their_order(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model="fake", input="hello", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    texts = [event for event in events if event.type == "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(texts),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in texts) == ANSWER
    last = events[-1]
    assert last.type == "response.completed"
    assert (last.response.status, last.response.output_text) == ("completed", ANSWER)
    assert {event.item_id for event in texts} == {last.response.output[0].id}


@pytest.mark.parametrize("limit", [None, 2])
async def test_openais_helper_for_streams(client: AsyncOpenAI, limit: int | None) -> None:
    fields: Any = {} if limit is None else {"max_output_tokens": limit}
    async with client.responses.stream(model="fake", input="hello", **fields) as stream:
        text = "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])
    assert text == (ANSWER if limit is None else "word0-0 word0-1 ")
    if limit is None:
        assert (await stream.get_final_response()).status == "completed"


class City(BaseModel):
    name: str


async def test_a_schema_reaches_the_engine_and_the_answer_is_parsed(start: Start) -> None:
    running = await start(FakeEngine(lambda prompt, index: list('{"name": "Paris"}')))
    seen: list[SamplingParams] = []
    submit = running.engine.submit

    def record(prompt: Any, params: SamplingParams) -> FakeStream:
        seen.append(params)
        return submit(prompt, params)

    running.engine.submit = record  # type: ignore[method-assign]
    async with AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
        response = await client.responses.parse(model="fake", input="hello", text_format=City)
    assert response.output_parsed == City(name="Paris")
    grammar = seen[0].grammar
    assert grammar is not None
    assert json.loads(grammar.text)["required"] == ["name"]


async def test_errors_are_typed_and_name_the_field(client: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError):
        await client.responses.create(model="gpt-4", input="hello")
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="fake", input="x" * 3000, stream=True)
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")
    with pytest.raises(NotFoundError):
        await client.responses.retrieve("resp_1")


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "a"}
TOOL = {"type": "function", "name": "f"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"type": "reasoning"}]}, "input[0].type"),
    ({"input": [{"type": "function_call"}]}, "input[0].call_id"),
    ({"input": [CALL | {"name": None}]}, "input[0].name"),
    ({"input": [CALL | {"arguments": "["}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output"}]}, "input[0].call_id"),
    ({"input": [RESULT]}, "input[0].call_id"),
    ({"input": [CALL, RESULT | {"output": None}]}, "input[1].output"),
    ({"input": [CALL, RESULT | {"output": [{"type": "input_image"}]}]}, "input[1].output[0].type"),
    ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
    ({"input": [{"content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": ["a"]}]}, "input[0].content[0]"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input[0].content[0].text",
    ),
    ({"input": "x" * (2**18 + 1)}, "input"),
    ({"instructions": 5}, "instructions"),
    ({"stream": "yes"}, "stream"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "5"}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"seed": "x"}, "seed"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "c"}, "conversation"),
    ({"background": True}, "background"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [TOOL] * 129}, "tools"),
    ({"tools": [TOOL | {"parameters": 5}]}, "tools[0].parameters"),
    ({"tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    (
        {"tools": [TOOL | {"parameters": {"type": "array"}}], "tool_choice": "required"},
        "tools[0].parameters.type",
    ),
    (
        {"tools": [TOOL], "tool_choice": "required", "text": {"format": {"type": "json_object"}}},
        "tool_choice",
    ),
    ({"max_tool_calls": 2}, "max_tool_calls"),
    ({"text": 5}, "text"),
    ({"text": {"format": "json"}}, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "text.format"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"reasoning": {"effort": "high"}}, "reasoning"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["x"]}, "include"),
    ({"n": 2}, "n"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"top_logprobs": 2}, "top_logprobs"),
]


@pytest.mark.parametrize("streamed", [False, True])
async def test_bad_bodies(running: Running, streamed: bool, subtests: pytest.Subtests) -> None:
    async with running.http() as http:
        for fields, param in BAD:
            with subtests.test(body=str(fields)[:100]):
                body = {"input": "a", "stream": streamed} | fields
                response = await http.post(PATH, json=body)
                assert response.status_code == 400, response.text
                assert response.json()["error"]["param"] == param
    assert running.engine.live == {}
    assert running.context.streams == {}


async def test_a_failure_in_the_middle_of_a_stream_is_an_event(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start()

    def fail(self: FakeStream, index: int, tokens: int, reason: Any, started: float) -> Any:
        end = finished(self, index, tokens, FinishReason.STOP, started)
        return CandidateFinished(
            0, FinishReason.ERROR, None, end.usage, end.timings, end.kv, Failure("it broke")
        )

    finished = FakeStream._finished
    monkeypatch.setattr(FakeStream, "_finished", fail)
    async with running.http() as http:
        response = await http.post(PATH, json={"input": "a", "stream": True})
        assert (await http.post(PATH, json={"input": "a"})).status_code == 500
    *_, last = [block for block in response.text.split("\n\n") if block]
    name, data = last.split("\n")
    document = json.loads(data.removeprefix("data: "))
    assert name == "event: response.failed"
    assert document["response"]["error"] == {"code": "engine_error", "message": "it broke"}


async def test_a_client_that_leaves_ends_its_answer(start: Start) -> None:
    running = await start(FakeEngine(lambda p, i: ["x"] * 10_000, token_interval=0.001))
    async with AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
        stream = await client.responses.create(model="fake", input="hello", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
    await running.stop()
    assert running.context.streams == {}
