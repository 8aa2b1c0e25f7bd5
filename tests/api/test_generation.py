"""What ends a generation over HTTP besides its own end: a client that goes, an engine that fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from api.access import Access
from api.generation import GenerationResponse, Job, Prompt
from api.openai_documents import ChatShape, Head
from engine.errors import RequestError
from engine.outputs import (
    CandidateFinished,
    EngineEvent,
    Failure,
    FailureCode,
    FinishReason,
    KVUsage,
    PrefillProgress,
    TextDelta,
    TextLogprob,
    Timings,
    Usage,
)
from engine.sampling_params import SamplingParams
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream

NUMBERS = Usage(1, 1, 0), Timings(0, 0, 0, 0, 0, 1), KVUsage(0, 0, 0, 0)
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


class WatchedStream(FakeStream):
    """Tells when it is closed; `changed` may put other events in place of the scripted ones."""

    def __init__(self, engine: "WatchedEngine", prompt: Sequence[int], params: SamplingParams):
        super().__init__(engine, prompt, params)
        self.watched = engine
        self.closed = asyncio.Event()
        self.changed = engine.change(self._events)

    def __aiter__(self) -> AsyncIterator[EngineEvent]:
        return self.changed

    async def aclose(self) -> None:
        await super().aclose()
        self.closed.set()


class WatchedEngine(FakeEngine):
    """Remembers its streams; `submitted` is set with each."""

    stream_class = WatchedStream

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.streams: list[WatchedStream] = []
        self.submitted = asyncio.Event()
        self.all_aborted = asyncio.Event()

    def change(self, events: AsyncIterator[EngineEvent]) -> AsyncIterator[EngineEvent]:
        return events

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> WatchedStream:
        self.check_request(prompt_token_ids, params)
        self.streams.append(self.stream_class(self, prompt_token_ids, params))
        self.submitted.set()
        return self.streams[-1]


class Silent(WatchedEngine):
    """A request that waits in the queue for ever."""

    async def change(self, events: AsyncIterator[EngineEvent]) -> AsyncIterator[EngineEvent]:
        await asyncio.Event().wait()
        async for event in events:
            yield event


class EndsLate(WatchedStream):
    """Its engine lets go of no request before all are aborted."""

    def abort(self, index: int | None = None) -> None:
        super().abort(index)
        if all(stream.aborted for stream in self.watched.streams):
            self.watched.all_aborted.set()

    async def aclose(self) -> None:
        self.abort()
        await self.watched.all_aborted.wait()
        await super().aclose()


class Slow(Silent):
    """Every request waits for ever and ends late."""

    stream_class = EndsLate


STEP_FAILED = Failure("the step failed")


class FailsAfter(WatchedEngine):
    """The engine dies after `count` events."""

    def __init__(self, count: int, error: Failure = STEP_FAILED) -> None:
        super().__init__()
        self.count, self.error = count, error

    async def change(self, events: AsyncIterator[EngineEvent]) -> AsyncIterator[EngineEvent]:
        for _ in range(self.count):
            yield await anext(events)
        yield CandidateFinished(0, FinishReason.ERROR, None, *NUMBERS, error=self.error)


class WithLogprobs(WatchedEngine):
    """Two tokens of one byte each of "é", then a word, with log-probabilities."""

    async def change(self, events: AsyncIterator[EngineEvent]) -> AsyncIterator[EngineEvent]:
        best = (TextLogprob(9, "x", -0.5, b"x"),)
        yield TextDelta(0, "", (1,), (TextLogprob(1, "\ufffd", -1.0, b"\xc3", best),))
        yield TextDelta(0, "é", (2,), (TextLogprob(2, "\ufffd", -2.0, b"\xa9", best),))
        yield TextDelta(0, "ab", (3,), (TextLogprob(3, "ab", -3.0, b"ab", best),))
        async for event in events:
            if not isinstance(event, TextDelta):
                yield event


async def open_request(running: Running, path: str, body: dict[str, Any]) -> asyncio.StreamWriter:
    """Send a request over a bare connection and do not read the answer."""
    host, port = running.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {running.address}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return writer


@pytest.mark.parametrize("engine_class", [Silent, WatchedEngine])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_requests(
    start: Start, engine_class: type[WatchedEngine], stream: bool
) -> None:
    engine = engine_class(token_interval=30.0)
    running = await start(engine)
    body = {"prompt": ["a", "b"], "n": 2, "stream": stream}
    async with asyncio.timeout(10):
        writer = await open_request(running, "/v1/completions", body)
        await engine.submitted.wait()
        writer.close()
        for request in engine.streams:
            await request.closed.wait()
    assert len(engine.streams) == 2
    assert all(request.aborted == {0, 1} for request in engine.streams)


async def test_all_requests_of_a_list_are_ended_before_any_is_waited_for(start: Start) -> None:
    engine = Slow()
    running = await start(engine)
    async with asyncio.timeout(10):
        body = {"prompt": ["a", "b", "c"], "n": 3}
        writer = await open_request(running, "/v1/completions", body)
        await engine.submitted.wait()
        writer.close()
        for request in engine.streams:
            await request.closed.wait()
    assert len(engine.streams) == 3


async def test_a_refused_prompt_ends_all_accepted_ones_at_once(start: Start) -> None:
    engine = Slow()
    running = await start(engine)
    async with running.http() as http, asyncio.timeout(10):
        response = await http.post("/v1/completions", json={"prompt": ["a", "b", ""]})
    assert response.json()["error"]["param"] == "prompt[2]"
    assert all(request.closed.is_set() for request in engine.streams)
    assert running.context.streams == {}


async def test_one_client_that_leaves_changes_nothing_for_another(start: Start) -> None:
    engine = WatchedEngine(token_interval=0.01)
    running = await start(engine)
    async with running.http() as http:
        other = asyncio.create_task(http.post("/v1/chat/completions", json=CHAT))
        await engine.submitted.wait()
        writer = await open_request(running, "/v1/chat/completions", CHAT)
        writer.close()
        response = await other
    assert response.json()["choices"][0]["message"]["content"].endswith("word0-11 ")


async def test_clients_with_the_same_request_id_do_not_end_each_other(start: Start) -> None:
    engine = WatchedEngine(token_interval=0.01)
    running = await start(engine)
    async with running.http(headers={"X-Request-Id": "same"}) as one, running.http() as other:
        left = asyncio.create_task(one.post("/v1/chat/completions", json=CHAT))
        await engine.submitted.wait()
        stays = other.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "same"})
        stays = asyncio.create_task(stays)
        engine.submitted.clear()
        await engine.submitted.wait()
        left.cancel()
        response = await stays
        await engine.streams[0].closed.wait()
    assert response.headers["X-Request-Id"] == "same"
    assert response.json()["choices"][0]["message"]["content"].endswith("word0-11 ")
    assert left.cancelled()


async def test_a_refused_prompt_lets_go_of_the_accepted_ones(start: Start) -> None:
    engine = WatchedEngine()
    running = await start(engine)
    async with running.http() as http:
        response = await http.post("/v1/completions", json={"prompt": ["a", ""]})
    assert response.status_code == 400
    assert [request.closed.is_set() for request in engine.streams] == [True]
    assert running.context.streams == {}


async def test_a_failure_before_the_first_event_is_an_error_response(start: Start) -> None:
    running = await start(FailsAfter(0))
    async with running.http() as http:
        for stream in (False, True):
            response = await http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
            assert response.status_code == 500
            assert response.json()["error"]["message"] == "the step failed"


async def test_a_grammar_that_is_too_much_is_the_clients_fault(start: Start) -> None:
    running = await start(FailsAfter(0, Failure("too many expressions", FailureCode.GRAMMAR)))
    async with running.http() as http:
        response = await http.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "too many expressions",
        "type": "invalid_request_error",
        "param": None,
        "code": "grammar_failed",
    }


async def test_a_failure_after_headers_is_a_framed_error_and_the_end(start: Start) -> None:
    engine = FailsAfter(3)
    running = await start(engine)
    async with running.http() as http:
        response = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert response.status_code == 200
    events = response.text.strip().split("\n\n")
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert error == {
        "message": "the step failed",
        "type": "server_error",
        "param": None,
        "code": "engine_error",
    }
    assert engine.streams[0].closed.is_set()


async def test_a_late_refusal_of_submit_is_a_400(start: Start) -> None:
    engine = WatchedEngine()
    running = await start(engine)

    def refuse(prompt: Sequence[int], params: SamplingParams) -> FakeStream:
        raise RequestError("16 blocks are not enough", param="prompt")

    engine.submit = refuse  # type: ignore[method-assign]
    async with running.http() as http:
        response = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


async def test_logprobs_of_chat_carry_true_bytes(start: Start) -> None:
    running = await start(WithLogprobs())
    body = {**CHAT, "logprobs": True, "top_logprobs": 1}
    async with running.http() as http:
        whole = (await http.post("/v1/chat/completions", json=body)).json()
        streamed = await http.post("/v1/chat/completions", json={**body, "stream": True})
    content = whole["choices"][0]["logprobs"]["content"]
    assert [token["bytes"] for token in content] == [[0xC3], [0xA9], [97, 98]]
    assert [token["logprob"] for token in content] == [-1.0, -2.0, -3.0]
    assert content[0]["top_logprobs"] == [{"token": "x", "logprob": -0.5, "bytes": [120]}]
    assert whole["choices"][0]["message"]["content"] == "éab"
    pieces = []
    for event in streamed.text.strip().split("\n\n")[:-1]:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            pieces += (choice["logprobs"] or {}).get("content", [])
    assert pieces == content


async def test_logprobs_of_completions_have_offsets(start: Start) -> None:
    running = await start(WithLogprobs())
    body = {"prompt": "p", "logprobs": 1}
    async with running.http() as http:
        whole = (await http.post("/v1/completions", json=body)).json()
        streamed = await http.post("/v1/completions", json={**body, "stream": True})
    logprobs = whole["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["\ufffd", "\ufffd", "ab"]
    assert logprobs["token_logprobs"] == [-1.0, -2.0, -3.0]
    assert logprobs["top_logprobs"][2] == {"ab": -3.0, "x": -0.5}
    assert logprobs["text_offset"] == [0, 1, 2]
    offsets = []
    for event in streamed.text.strip().split("\n\n")[:-1]:
        choice = json.loads(event.removeprefix("data: "))["choices"][0]
        offsets += (choice["logprobs"] or {}).get("text_offset", [])
    assert offsets == [0, 1, 2]


# --- what goes out together ----------------------------------------------------------------------


async def bodies_of(running: Running, params: SamplingParams) -> list[bytes]:
    """The bodies of a streamed chat, a system call each."""
    shape = ChatShape()
    head = Head(shape.prefix, "fake")
    job = Job([Prompt([1, 2], "messages")], params, head, shape, True, "last")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope: Any = {"type": "http", "state": {"access": Access("id", "POST", "/")}}
    await GenerationResponse(running.context, job)(scope, receive, send)
    assert sent[0]["type"] == "http.response.start"
    return [message["body"] for message in sent[1:]]


async def test_the_first_token_goes_out_with_what_opens_the_stream(running: Running) -> None:
    first, *others = await bodies_of(running, SamplingParams(max_tokens=3))
    opening, delta = [json.loads(line[6:]) for line in first.split(b"\n\n") if line]
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert delta["choices"][0]["delta"]["content"]
    assert [body.count(b"data: ") for body in others] == [1, 1, 1, 2, 0]
    assert others[-2].endswith(b"data: [DONE]\n\n")


class InChunks(WatchedEngine):
    """A prompt that is computed in two steps."""

    async def change(self, events: AsyncIterator[EngineEvent]) -> AsyncIterator[EngineEvent]:
        yield PrefillProgress(1, 2)
        async for event in events:
            yield event


async def test_a_long_prompt_opens_the_stream_before_it_is_computed(start: Start) -> None:
    bodies = await bodies_of(await start(InChunks()), SamplingParams(max_tokens=1))
    assert [body.count(b"data: ") for body in bodies] == [1, 1, 1, 2, 0]
    assert b'"role":"assistant"' in bodies[0]
