"""/v1/embeddings: through OpenAI's own client where it can, with plain HTTP for what it hides."""

import asyncio
import base64
import logging
import math
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from engine.outputs import (
    CandidateFinished,
    EngineEvent,
    Failure,
    FinishReason,
    KVUsage,
    Timings,
    Usage,
)
from engine.sampling_params import SamplingParams
from engine.stats import EngineStatus
from tests.api.conftest import Running, Start
from tests.api.test_generation import open_request
from tests.fake_engine import FakeEngine
from tests.fake_streams import HIDDEN_SIZE, FakeEmbeddingStream, FakeStream, fake_embedding

NUMBERS = Usage(1, 0, 0), Timings(0, 0, 0, 0, 0, 0), KVUsage(0, 0, 0, 0)


def as_float32(values: Sequence[float]) -> list[float]:
    return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))


def vector(text: str) -> list[float]:
    return as_float32(fake_embedding(list(text.encode())))


class WatchedStream(FakeEmbeddingStream):
    """Waits to be aborted; tells when it is closed. Its engine lets go of no request before all are aborted."""

    def __init__(self, engine: "Silent", prompt: Sequence[int]) -> None:
        super().__init__(engine, prompt)
        self.watched = engine
        self.closed = asyncio.Event()

    def abort(self, index: int | None = None) -> None:
        super().abort(index)
        if all(stream.aborted for stream in self.watched.streams):
            self.watched.all_aborted.set()

    async def aclose(self) -> None:
        self.abort()
        await self.watched.all_aborted.wait()
        self.closed.set()

    async def _run(self) -> AsyncIterator[EngineEvent]:
        await self.watched.all_aborted.wait()
        async for event in super()._run():
            yield event


class Silent(FakeEngine):
    """Its embeddings never come."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[WatchedStream] = []
        self.submitted = asyncio.Event()
        self.all_aborted = asyncio.Event()

    def embed(self, prompt_token_ids: Sequence[int]) -> WatchedStream:
        self.check_request(prompt_token_ids, SamplingParams(max_tokens=0))
        self.streams.append(WatchedStream(self, prompt_token_ids))
        self.submitted.set()
        return self.streams[-1]


class PatientStream(FakeEmbeddingStream):
    """Comes after the one whose prompt is longer by a token, if there is one."""

    def __init__(self, engine: "Backwards", prompt: Sequence[int]) -> None:
        super().__init__(engine, prompt)
        self.ended = engine.ended

    async def _run(self) -> AsyncIterator[EngineEvent]:
        longer = self.ended.get(len(self.prompt) + 1)
        if longer is not None:
            await longer.wait()
        async for event in super()._run():
            yield event
        self.ended[len(self.prompt)].set()


class Backwards(FakeEngine):
    """Of prompts of 1, 2 and 3 tokens the longest is ready first."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = {length: asyncio.Event() for length in (1, 2, 3)}

    def embed(self, prompt_token_ids: Sequence[int]) -> PatientStream:
        return PatientStream(self, prompt_token_ids)


class FailingStream(FakeEmbeddingStream):
    """A step of its engine fails."""

    async def _run(self) -> AsyncIterator[EngineEvent]:
        yield CandidateFinished(
            0, FinishReason.ERROR, None, *NUMBERS, error=Failure("the step failed")
        )


class Failing(FakeEngine):
    """All its embeddings fail."""

    def embed(self, prompt_token_ids: Sequence[int]) -> FailingStream:
        return FailingStream(self, prompt_token_ids)


@pytest.fixture
async def client(running: Running) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=running.url + "/v1", api_key="none", max_retries=0, timeout=10
    ) as openai:
        yield openai


@pytest.mark.parametrize("encoding_format", [None, "float", "base64"])
async def test_vectors_come_in_order(client: AsyncOpenAI, encoding_format: Any) -> None:
    """Without a format the client asks for base64 and decodes it; with one it hands over what came."""
    options = {} if encoding_format is None else {"encoding_format": encoding_format}
    texts = ["hello", "a", "world and more"]
    response = await client.embeddings.create(model="fake", input=texts, **options)
    vectors: list[Any] = [item.embedding for item in response.data]
    if encoding_format == "base64":
        vectors = [list(struct.unpack("<8f", base64.b64decode(v))) for v in vectors]
    assert vectors == [vector(text) for text in texts]
    assert [(item.index, item.object) for item in response.data] == [
        (i, "embedding") for i in range(3)
    ]
    assert (response.object, response.model) == ("list", "fake")
    assert (response.usage.prompt_tokens, response.usage.total_tokens) == (20, 20)


async def test_the_document_has_these_fields_and_no_others(running: Running) -> None:
    async with running.http() as http:
        response = await http.post("/v1/embeddings", json={"input": "ab"})
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": vector("ab")}],
        "model": "fake",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }


@pytest.mark.parametrize("given", ["hi", ["hi"], [104, 105], [[104, 105]]])
async def test_texts_and_token_ids(client: AsyncOpenAI, given: Any) -> None:
    response = await client.embeddings.create(model="fake", input=given)
    assert [item.embedding for item in response.data] == [vector("hi")]


async def test_answers_keep_their_place_whoever_is_first(start: Start) -> None:
    running = await start(Backwards())
    texts = ["a", "bb", "ccc"]
    async with running.http() as http:
        response = await http.post("/v1/embeddings", json={"input": texts})
    data = response.json()["data"]
    assert [item["index"] for item in data] == [0, 1, 2]
    assert [item["embedding"] for item in data] == [vector(text) for text in texts]


@pytest.mark.parametrize("dimensions", [1, 3, HIDDEN_SIZE])
async def test_fewer_dimensions_have_length_1_again(client: AsyncOpenAI, dimensions: int) -> None:
    response = await client.embeddings.create(
        model="fake", input="hello, world", dimensions=dimensions
    )
    (item,) = response.data
    kept = fake_embedding(list(b"hello, world"))[:dimensions]
    length = math.hypot(*kept)
    assert item.embedding == as_float32([value / length for value in kept])


async def test_zeros_stay_zeros(client: AsyncOpenAI) -> None:
    response = await client.embeddings.create(model="fake", input=[1, 9], dimensions=1)
    assert response.data[0].embedding == [0.0]


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "input", "this field is required"),
    ({"input": None}, "input", "a string, token ids, or a list of 1 to 2048"),
    ({"input": []}, "input", "a string, token ids, or a list of 1 to 2048"),
    ({"input": {}}, "input", "a string, token ids, or a list of 1 to 2048"),
    ({"input": ["a"] * 2049}, "input", "a string, token ids, or a list of 1 to 2048"),
    ({"input": ""}, "input", "input: the prompt is empty"),
    ({"input": [""]}, "input", "input: the prompt is empty"),
    ({"input": ["a", ""]}, "input[1]", "input[1]: the prompt is empty"),
    ({"input": ["a", []]}, "input[1]", "input[1]: a string or token ids"),
    ({"input": ["a", 5]}, "input[1]", "input[1]: a string or token ids"),
    ({"input": [True]}, "input[0]", "input[0]: a string or token ids"),
    ({"input": "a" * 2049}, "input", "input: the prompt has 2049 tokens; 2048 fit"),
    ({"input": ["a", "a" * 2049]}, "input[1]", "input[1]: the prompt has 2049 tokens; 2048 fit"),
    ({"input": "a", "dimensions": 0}, "dimensions", "dimensions: 0 is not allowed; 1 to 8"),
    ({"input": "a", "dimensions": 9}, "dimensions", "dimensions: 9 is not allowed; 1 to 8"),
    ({"input": "a", "dimensions": 2.5}, "dimensions", "dimensions: "),
    ({"input": "a", "dimensions": True}, "dimensions", "dimensions: "),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
    ({"input": "a", "priority": 3}, "priority", "priority is not supported"),
    ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "is not supported"),
    ({"input": "a", "model": "ada"}, "model", "there is no 'ada' here"),
]


@pytest.mark.parametrize(("body", "param", "text"), BAD)
async def test_what_cannot_be_is_refused_by_name(
    running: Running, body: dict[str, Any], param: str, text: str
) -> None:
    async with running.http() as http:
        response = await http.post("/v1/embeddings", json=body)
    error = response.json()["error"]
    assert response.status_code == (404 if param == "model" else 400)
    assert error["param"] == param
    assert text in error["message"]
    assert running.context.streams == {}


async def test_the_whole_context_fits_and_the_client_names_the_error(client: AsyncOpenAI) -> None:
    response = await client.embeddings.create(model="fake", input="a" * 2048)
    assert response.usage.prompt_tokens == 2048
    with pytest.raises(BadRequestError, match="2049 tokens; 2048 fit") as refusal:
        await client.embeddings.create(model="fake", input="a" * 2049)
    assert refusal.value.code == "context_length_exceeded"


async def test_ignored_unknown_and_neutral_fields(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"input": "a", "user": "me", "nonsense": 1, "priority": 0, "dimensions": None}
    with caplog.at_level(logging.WARNING):
        async with running.http() as http:
            response = await http.post("/v1/embeddings", json=body)
    assert response.status_code == 200
    assert caplog.messages == ["ignored unknown fields of a request: 'nonsense'"]


async def test_a_client_that_leaves_ends_all_its_requests(start: Start) -> None:
    engine = Silent()
    running = await start(engine)
    async with asyncio.timeout(10):
        writer = await open_request(running, "/v1/embeddings", {"input": ["a", "b", "c"]})
        await engine.submitted.wait()
        writer.close()
        for stream in engine.streams:
            await stream.closed.wait()
    assert [stream.prompt for stream in engine.streams] == [[97], [98], [99]]


async def test_a_refused_input_ends_all_accepted_ones(start: Start) -> None:
    engine = Silent()
    running = await start(engine)
    async with running.http() as http, asyncio.timeout(10):
        response = await http.post("/v1/embeddings", json={"input": ["a", "b", ""]})
    assert response.json()["error"]["param"] == "input[2]"
    assert all(stream.closed.is_set() for stream in engine.streams)
    assert running.context.streams == {}


async def test_a_failure_of_the_engine_is_a_500(start: Start) -> None:
    running = await start(Failing())
    async with running.http() as http:
        response = await http.post("/v1/embeddings", json={"input": ["a", "b"]})
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the step failed"


async def test_shutdown_gives_time_and_then_ends_them_with_a_503(start: Start) -> None:
    engine = Silent()
    running = await start(engine, shutdown_timeout=0.05)
    async with running.http() as http, asyncio.timeout(10):
        call = asyncio.create_task(http.post("/v1/embeddings", json={"input": ["a", "b"]}))
        await engine.submitted.wait()
        await running.stop()
        response = await call
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert response.json()["error"]["code"] == "shutting_down"


async def test_one_that_an_operator_stops_is_told_so_and_not_to_try_again(start: Start) -> None:
    engine = Silent()
    running = await start(engine)
    async with running.http() as http, asyncio.timeout(10):
        call = asyncio.create_task(http.post("/v1/embeddings", json={"input": ["a", "b"]}))
        await engine.submitted.wait()
        for stream in engine.streams:
            stream.abort()
        response = await call
    assert (response.status_code, response.json()["error"]["code"]) == (403, "stopped")
    assert "retry-after" not in response.headers
    assert all(stream.closed.is_set() for stream in engine.streams)


async def test_while_loading_it_is_a_503(start: Start) -> None:
    engine = FakeEngine()
    engine.status = EngineStatus("loading", "reading", 0.5)
    running = await start(engine)
    async with running.http() as http:
        response = await http.post("/v1/embeddings", json={"input": "a"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")


class Counting(FakeEngine):
    """Notes how many requests are under way when an embedding is begun; `streams` are its server's."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: Mapping[Any, Any] = {}
        self.seen: list[int] = []

    def embed(self, prompt_token_ids: Sequence[int]) -> FakeStream:
        self.seen.append(len(self.streams))
        return super().embed(prompt_token_ids)


async def test_2048_inputs_enter_in_portions(start: Start) -> None:
    engine = Counting()
    running = await start(engine)
    engine.streams = running.context.streams
    texts = [str(i) for i in range(2048)]
    async with running.http() as http:
        document = (await http.post("/v1/embeddings", json={"input": texts})).json()
    assert [item["index"] for item in document["data"]] == list(range(2048))
    assert [item["embedding"] for item in document["data"]] == list(map(vector, texts))
    assert document["usage"]["prompt_tokens"] == sum(map(len, texts))
    assert engine.seen == list(range(32)) * 64


async def test_a_bad_last_input_is_refused_before_the_first_is_computed(start: Start) -> None:
    engine = Counting()
    running = await start(engine)
    async with running.http() as http:
        response = await http.post("/v1/embeddings", json={"input": ["a"] * 100 + ["x" * 3000]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input[100]")
    assert engine.seen == []
