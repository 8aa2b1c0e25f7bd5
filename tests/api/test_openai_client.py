"""OpenAI's own package, with and without asyncio: the ordinary calls, typed errors, and streams that are left."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from openai import (
    APIStatusError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    OpenAI,
)

from engine.stats import EngineStatus
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [{"type": "function", "function": {"name": "f"}}]
SAID = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def ordinary_calls(url: str) -> dict[str, Any]:
    """What a program without asyncio does."""
    with OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=20) as client:
        chat = client.chat.completions
        many = chat.create(model="fake", messages=HELLO, n=3)
        stream = chat.create(model="fake", messages=HELLO, stream=True)
        called = chat.create(model="fake", messages=HELLO, tools=TOOLS).choices[0].message
        assert called.tool_calls is not None
        (call,) = called.tool_calls
        assert call.type == "function"
        embedded = client.embeddings.create(model="fake", input=["a", "b"])
        return {
            "many": [choice.message.content for choice in many.choices],
            "streamed": "".join(c.choices[0].delta.content or "" for c in stream),
            "called": (call.function.name, call.function.arguments),
            "legacy": client.completions.create(model="fake", prompt="a").choices[0].text,
            "response": client.responses.create(model="fake", input="a").output_text,
            "embedded": [len(item.embedding) for item in embedded.data],
            "models": [model.id for model in client.models.list()],
        }


async def test_ordinary_calls_without_asyncio(start: Start) -> None:
    running = await start(FakeEngine(lambda prompt, index: list(SAID if index == 0 else "x")))
    assert await asyncio.to_thread(ordinary_calls, running.url) == {
        "many": [SAID, "x", "x"],
        "streamed": SAID,
        "called": ("f", "{}"),
        "legacy": SAID,
        "response": SAID,
        "embedded": [8, 8],
        "models": ["fake"],
    }


async def test_logprobs_are_read_by_the_client(start: Start) -> None:
    """The fake's letters: a is half of all, b a quarter, and so on; what is none of the best has 1/1024."""
    running = await start(FakeEngine(lambda prompt, index: ["b", "z"]))
    half, quarter = (round(math.log(p), 4) for p in (1 / 2, 1 / 4))
    rare = round(math.log(1 / 1024), 4)
    async with AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
        whole = await client.chat.completions.create(
            model="fake", messages=HELLO, logprobs=True, top_logprobs=2
        )
        stream = await client.chat.completions.create(
            model="fake", messages=HELLO, logprobs=True, top_logprobs=2, stream=True
        )
        streamed = [chunk.choices[0].logprobs async for chunk in stream]
        legacy = await client.completions.create(model="fake", prompt="a", logprobs=2)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    told = [(each.token, round(each.logprob, 4), each.bytes) for each in logprobs.content]
    assert told == [("b", quarter, [98]), ("z", rare, [122])]
    best = [(top.token, round(top.logprob, 4)) for top in logprobs.content[0].top_logprobs]
    assert best == [("a", half), ("b", quarter)]
    pieces = [piece for each in streamed if each is not None for piece in each.content or ()]
    assert [piece.model_dump() for piece in pieces] == [
        entry.model_dump() for entry in logprobs.content
    ]
    old = legacy.choices[0].logprobs
    assert old is not None
    assert (old.tokens, old.text_offset) == (["b", "z"], [0, 1])
    assert [round(value, 4) for value in old.token_logprobs or ()] == [quarter, rare]
    assert [list(top) for top in old.top_logprobs or ()] == [["b", "a"], ["z", "a", "b"]]


Call = Callable[[AsyncOpenAI], Any]
ERRORS: list[tuple[Call, type[APIStatusError], str | None, str | None]] = [
    (
        lambda c: c.chat.completions.create(model="fake", messages=HELLO, temperature=3),
        BadRequestError,
        "temperature",
        "invalid_value",
    ),
    (
        lambda c: c.chat.completions.create(model="fake", messages=[], stream=True),
        BadRequestError,
        "messages",
        "invalid_value",
    ),
    (
        lambda c: c.completions.create(model="fake", prompt="x" * 2048),
        BadRequestError,
        "prompt",
        "context_length_exceeded",
    ),
    (
        lambda c: c.embeddings.create(model="other", input="a"),
        NotFoundError,
        "model",
        "model_not_found",
    ),
    (lambda c: c.chat.completions.retrieve("x"), NotFoundError, None, "unknown_route"),
    (
        lambda c: c.completions.create(model="fake", prompt="x" * 2**23),
        APIStatusError,
        None,
        None,
    ),
]


@pytest.mark.parametrize(("call", "kind", "param", "code"), ERRORS)
async def test_errors_are_typed(
    running: Running, call: Call, kind: type[APIStatusError], param: str | None, code: str | None
) -> None:
    async with AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(kind) as caught:
            await call(client)
    assert (caught.value.param, caught.value.code) == (param, code)
    if kind is APIStatusError:
        assert caught.value.status_code == 413


async def test_a_wrong_key_and_a_model_that_loads(start: Start) -> None:
    engine = FakeEngine()
    running = await start(engine, api_key="right")
    async with AsyncOpenAI(base_url=running.url + "/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(AuthenticationError):
            await client.models.list()
        right = client.with_options(api_key="right")
        assert [model.id async for model in right.models.list()] == ["fake"]
        engine.status = EngineStatus("loading", "reading weights", 0.4)
        with pytest.raises(InternalServerError) as caught:
            await right.chat.completions.create(model="fake", messages=HELLO)
        assert (caught.value.status_code, caught.value.code) == (503, "loading")


@pytest.mark.parametrize("route", ["chat", "completions", "responses"])
async def test_a_stream_that_is_left_ends_its_request(start: Start, route: str) -> None:
    engine = FakeEngine(lambda prompt, index: ["x"] * 100_000, token_interval=0.001)
    running = await start(engine)
    async with AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
        if route == "chat":
            stream: Any = await client.chat.completions.create(
                model="fake", messages=HELLO, stream=True, max_tokens=100_000
            )
        elif route == "completions":
            stream = await client.completions.create(
                model="fake", prompt="a", stream=True, max_tokens=100_000
            )
        else:
            stream = await client.responses.create(
                model="fake", input="a", stream=True, max_output_tokens=100_000
            )
        async for _ in stream:
            break
        await stream.close()
        async with asyncio.timeout(10):
            await asyncio.gather(*running.context.streams.values(), return_exceptions=True)
    assert running.context.streams == {}
