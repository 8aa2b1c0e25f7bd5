"""`response_format` in the engine's words, and through the routes."""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from api.response_format import read_response_format
from engine.errors import RequestError
from engine.grammar_spec import GrammarKind, GrammarSpec, json_grammar
from engine.sampling_params import SamplingParams
from tests.api.conftest import Start
from tests.engine.byte_codec import byte_compiler
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}}


def test_the_three_types() -> None:
    assert read_response_format(None) is None
    assert read_response_format({"type": "text"}) is None
    any_object = read_response_format({"type": "json_object"})
    assert any_object == json_grammar({"type": "object"}, "")
    assert any_object is not None
    assert any_object.param == "response_format"
    named = {"name": "x", "description": "d", "schema": SCHEMA, "strict": True}
    spec = read_response_format({"type": "json_schema", "json_schema": named})
    assert spec == json_grammar(SCHEMA, "")
    assert spec is not None
    assert spec.param == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ({}, ".type"),
        ({"type": ["text"]}, ".type"),
        ({"type": "structural_tag"}, ".type"),
        ({"type": "json_object", "schema": SCHEMA}, ".schema"),
        ({"type": "text", "json_schema": {}}, ".json_schema"),
        ({"type": "json_schema"}, ".json_schema"),
        ({"type": "json_schema", "json_schema": [1]}, ".json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, ".json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": "{}"}}, ".json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}},
            ".json_schema.strict",
        ),
        ({"type": "json_schema", "json_schema": {"schema": {}, "zoo": 1}}, ".json_schema.zoo"),
    ],
)
def test_what_is_refused_and_where(raw: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_response_format(raw)
    assert caught.value.param == f"response_format{param}"
    assert caught.value.message.startswith(f"response_format{param}")


class Noting(FakeEngine):
    """Remembers under which grammars it was asked, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[GrammarSpec | None] = []
        self.submitted: list[GrammarSpec | None] = []

    async def prepare(self, params: SamplingParams) -> None:
        await super().prepare(params)
        self.prepared.append(params.grammar)

    def submit(self, prompt_token_ids: Any, params: SamplingParams) -> FakeStream:
        self.submitted.append(params.grammar)
        return super().submit(prompt_token_ids, params)


async def test_chats_completions_and_sockets_compile_first_and_run_then(start: Start) -> None:
    engine = Noting()
    running = await start(engine)
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    async with running.http() as http:
        for path, body in (
            ("/v1/chat/completions", {"messages": HELLO, "response_format": wanted}),
            ("/v1/completions", {"prompt": "a", "response_format": wanted}),
            ("/v1/chat/completions", {"messages": HELLO, "structured_outputs": {"json": SCHEMA}}),
        ):
            response = await http.post(path, json=body)
            assert response.status_code == 200, response.text
    async with running.ready_socket() as client:
        await client.send("send", content="hello", sampling={"guided_json": SCHEMA})
        await client.until("finished")
    assert engine.prepared == engine.submitted == [json_grammar(SCHEMA, "")] * 4


class Person(BaseModel):
    """What OpenAI's client asks for as a model."""

    name: str
    age: int | None


async def test_openais_client_sends_a_model_and_parses_the_answer(start: Start) -> None:
    engine = Noting()
    engine.script = lambda prompt, index: ['{"name": "Ada", ', '"age": null}']
    running = await start(engine)
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        answer = await client.chat.completions.parse(
            model="fake",
            messages=[{"role": "user", "content": "Who?"}],
            response_format=Person,
        )
    assert answer.choices[0].message.parsed == Person(name="Ada", age=None)
    (spec,) = engine.submitted
    assert spec is not None
    assert spec.param == "response_format.json_schema.schema"
    assert json.loads(spec.text)["additionalProperties"] is False
    byte_compiler().compile(spec)


async def test_a_socket_hears_of_a_bad_grammar_before_anything_is_stored(start: Start) -> None:
    running = await start(Noting())
    async with running.ready_socket() as client:
        await client.send("send", content="hello", sampling={"guided_regex": "("}, request_id=1)
        error = await client.expect("error")
        assert (error["param"], error["request_id"]) == ("sampling.guided_regex", 1)
        await client.send("subscribe", topic="conversations")
        assert (await client.expect("conversations"))["items"] == []


async def test_an_answer_is_not_continued_under_a_grammar(start: Start) -> None:
    engine = Noting()
    running = await start(engine)
    async with running.ready_socket() as client:
        await client.send("send", content="hello")
        started = (await client.until("finished"))[0]
        message_id = started["candidates"][0]["message_id"]
        sampling = {"guided_choice": ["a"]}
        await client.send("continue", message_id=message_id, at_token=2, sampling=sampling)
        assert (await client.expect("error"))["param"] == "sampling.guided_choice"
        await client.send("continue", message_id=message_id, at_token=0, sampling=sampling)
        await client.until("finished")
    assert engine.submitted == [None, GrammarSpec(GrammarKind.CHOICE, '["a"]', "")]
