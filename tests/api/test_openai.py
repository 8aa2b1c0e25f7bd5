"""The OpenAI routes: through OpenAI's own client where it can, with plain HTTP for what it hides."""

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError

from engine.stats import EngineStatus
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream

HELLO: Any = [{"role": "user", "content": "hello"}]


def answer(index: int) -> str:
    return "".join(f"word{index}-{i} " for i in range(12))


@pytest.fixture
async def client(running: Running) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=running.url + "/v1", api_key="none", max_retries=0, timeout=10
    ) as openai:
        yield openai


async def test_chat_answers_whole(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(model="fake", messages=HELLO, n=2)
    assert [c.message.content for c in completion.choices] == [answer(0), answer(1)]
    assert [c.index for c in completion.choices] == [0, 1]
    assert {c.finish_reason for c in completion.choices} == {"stop"}
    usage = completion.usage
    assert usage is not None
    prompt = len("<user>hello\n")
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, 24)
    assert usage.total_tokens == prompt + 24


async def test_chat_streams_the_same_text_with_one_finish_per_index(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="fake", messages=HELLO, n=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    texts = {0: "", 1: ""}
    finishes: list[tuple[int, str]] = []
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                finishes.append((choice.index, choice.finish_reason))
    assert texts == {0: answer(0), 1: answer(1)}
    assert sorted(finishes) == [(0, "stop"), (1, "stop")]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_max_tokens_ends_with_length(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(
        model="fake", messages=HELLO, max_completion_tokens=3
    )
    assert completion.choices[0].message.content == "word0-0 word0-1 word0-2 "
    assert completion.choices[0].finish_reason == "length"


async def test_several_prompts_and_n_are_numbered_prompt_by_prompt(client: AsyncOpenAI) -> None:
    completion = await client.completions.create(model="fake", prompt=["ab", "c"], n=2)
    assert [c.index for c in completion.choices] == [0, 1, 2, 3]
    assert [c.text for c in completion.choices] == [answer(0), answer(1)] * 2
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 3
    assert completion.usage.completion_tokens == 48
    stream = await client.completions.create(model="fake", prompt=["ab", "c"], n=2, stream=True)
    texts = ["", "", "", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [answer(0), answer(1)] * 2


@pytest.mark.parametrize("prompt", ["hi", [104, 105], [[104, 105]]])
async def test_echo_shows_the_prompt_first(client: AsyncOpenAI, prompt: Any) -> None:
    completion = await client.completions.create(model="fake", prompt=prompt, echo=True)
    assert completion.choices[0].text == "hi" + answer(0)
    stream = await client.completions.create(model="fake", prompt=prompt, echo=True, stream=True)
    text = "".join([c.choices[0].text async for c in stream])
    assert text == "hi" + answer(0)


async def test_models(client: AsyncOpenAI, running: Running) -> None:
    assert [model.id async for model in client.models.list()] == ["fake"]
    assert (await client.models.retrieve("fake")).id == "fake"
    with pytest.raises(NotFoundError, match="there is no 'gpt-4' here"):
        await client.models.retrieve("gpt-4")
    with pytest.raises(NotFoundError, match="there is no 'gpt-4' here"):
        await client.chat.completions.create(model="gpt-4", messages=HELLO)


async def test_sampling_fields_reach_the_engine(running: Running) -> None:
    seen = []
    submit = running.engine.submit

    def record(prompt: Any, params: Any) -> FakeStream:
        seen.append(params)
        return submit(prompt, params)

    running.engine.submit = record  # type: ignore[method-assign]
    body = {"messages": HELLO, "temperature": 0.5, "top_k": 7, "seed": 3, "stop": ["x"]}
    body |= {"stop_token_ids": [5], "logit_bias": {"9": -1}, "ignore_eos": True, "min_p": 0.1}
    async with running.http() as http:
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    (params,) = seen
    assert (params.temperature, params.top_k, params.seed, params.stop) == (0.5, 7, 3, ("x",))
    assert (params.stop_token_ids, params.ignore_eos, params.min_p) == ((5,), True, 0.1)
    assert dict(params.logit_bias) == {9: -1.0}


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


async def test_a_prompt_that_is_too_long_is_told_both_numbers(running: Running) -> None:
    async with running.http() as http:
        response = await http.post(COMPLETIONS, json={"prompt": ["ok", "x" * 2048]})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "2048" in error["message"]
    assert "2047" in error["message"]
    assert error["param"] == "prompt[1]"


async def test_neutral_and_ignored_fields_pass_and_unknown_ones_are_named_once(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"messages": HELLO, "user": "u", "tools": None, "tool_choice": "auto", "best_of": 1}
    body |= {"response_format": {"type": "text"}, "zebra": 1, "apple": 2, "audio": None}
    body |= {"stream": True, "stream_options": {"include_usge": True}}
    with caplog.at_level(logging.WARNING, "api"):
        async with running.http() as http:
            assert (await http.post(CHAT, json=body)).status_code == 200
    assert [r.getMessage() for r in caplog.records] == [
        "ignored unknown fields of a request: 'apple', 'stream_options.include_usge', 'zebra'"
    ]


async def test_unknown_fields_are_named_where_nothing_is_drawn(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "api"):
        async with running.http() as http:
            await http.post("/tokenize", json={"prompt": "a", "zebra": 1})
            await http.post("/detokenize", json={"tokens": [5], "apple": 1})
    assert caplog.messages == [
        f"ignored unknown fields of a request: '{name}'" for name in ("zebra", "apple")
    ]


async def test_developer_is_system_and_text_parts_are_lines(running: Running) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "c"},
    ]
    async with running.http() as http:
        response = await http.post("/tokenize", json={"messages": messages})
    text = bytes(response.json()["tokens"]).decode()
    assert text == "<system>d\n<user>a\nb\n<assistant>\n<user>c\n"


async def test_an_error_and_the_log_do_not_repeat_what_is_long(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    long = "x" * 900_000
    async with running.http() as http:
        for body in (
            {"messages": HELLO, "model": long},
            {"messages": HELLO, "logit_bias": {long: 1}},
            {"messages": [{"role": "user", "content": [{"type": long}]}]},
        ):
            response = await http.post(CHAT, json=body)
            assert response.status_code in (400, 404)
            assert len(response.text) < 1500
        assert (await http.post(CHAT, json={"messages": HELLO, long: 1})).status_code == 200
    assert all(len(record.getMessage()) < 1000 for record in caplog.records)


@pytest.mark.parametrize("max_model_len", [2048, 2**16])
async def test_a_text_has_its_limit(
    running: Running, monkeypatch: pytest.MonkeyPatch, max_model_len: int
) -> None:
    info = replace(running.engine.info, max_model_len=max_model_len)
    monkeypatch.setattr(FakeEngine, "info", info)
    limit = max(2**18, 8 * max_model_len)
    encoded: list[str] = []

    async def encode(text: str) -> list[int]:
        encoded.append(text)
        return [1]

    monkeypatch.setattr(running.engine, "encode", encode)
    long = "x" * (limit + 1)
    halves = [{"role": "user", "content": "x" * (limit // 2)}, {"role": "user", "content": long}]
    refused = [
        ("/tokenize", {"prompt": long}, "prompt"),
        ("/tokenize", {"messages": halves}, "messages"),
        (CHAT, {"messages": halves}, "messages"),
        (COMPLETIONS, {"prompt": ["a", long]}, "prompt[1]"),
    ]
    async with running.http() as http:
        for path, body, param in refused:
            response = await http.post(path, json=body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param)
            assert str(limit) in error["message"]
        assert (await http.post("/tokenize", json={"prompt": long[1:]})).status_code == 200
    assert [len(text) for text in encoded] == [1, limit]


async def test_tokenize_and_detokenize_mirror_each_other(running: Running) -> None:
    async with running.http() as http:
        response = await http.post("/tokenize", json={"prompt": "héllo", "model": "fake"})
        document = response.json()
        assert document == {
            "count": 6,
            "max_model_len": 2048,
            "tokens": list("héllo".encode()),
        }
        response = await http.post("/detokenize", json={"tokens": document["tokens"]})
        assert response.json() == {"prompt": "héllo"}


@pytest.mark.parametrize("token_id", [-1, FakeEngine().info.vocab_size, 10**30])
async def test_what_is_no_token_is_named(running: Running, token_id: int) -> None:
    async with running.http() as http:
        response = await http.post("/detokenize", json={"tokens": [5, token_id]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tokens[1]")


async def test_loading_is_503_with_retry_after(start: Start) -> None:
    engine = FakeEngine()
    engine.status = EngineStatus("loading", "reading weights", 0.4)
    running = await start(engine)
    async with running.http() as http:
        for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
            response = await http.post(path, json={"messages": HELLO})
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            assert response.json()["error"]["code"] == "loading"
        assert (await http.get("/v1/models")).status_code == 503
