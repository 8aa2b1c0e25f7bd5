"""The end of the server, seen by HTTP clients that have something running."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from engine.sampling_params import SamplingParams
from tests.api.conftest import Start
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream

BODY = {"messages": [{"role": "user", "content": "hello"}]}


async def test_what_runs_at_the_end_gets_its_answer_with_abort(start: Start) -> None:
    begun = asyncio.Semaphore(0)

    def script(prompt: object, index: int) -> list[str]:
        begun.release()
        return ["word "] * 1000

    running = await start(FakeEngine(script, token_interval=0.01), shutdown_timeout=0)
    async with running.http() as http:
        path = "/v1/chat/completions"
        whole = asyncio.create_task(http.post(path, json=BODY))
        streamed = asyncio.create_task(http.post(path, json={**BODY, "stream": True}))
        async with asyncio.timeout(10):
            await begun.acquire()
            await begun.acquire()
            await running.stop()
            choice = (await whole).json()["choices"][0]
            events = (await streamed).text.strip().split("\n\n")
    assert choice["finish_reason"] == "abort"
    assert choice["message"]["content"].startswith("word ")
    assert events[-1] == "data: [DONE]"
    last = json.loads(events[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "abort"


async def test_what_can_end_in_time_ends_by_itself(start: Start) -> None:
    engine = FakeEngine(token_interval=0.02)
    running = await start(engine, shutdown_timeout=10)
    async with running.http() as http:
        async with http.stream(
            "POST", "/v1/completions", json={"prompt": "a", "stream": True}
        ) as r:
            lines = r.aiter_lines()
            await anext(lines)
            stopping = asyncio.create_task(running.stop())
            rest = [line async for line in lines if line]
        await stopping
    assert '"finish_reason":"stop"' in rest[-2]


class Hanging(FakeEngine):
    """Its streams do not end, whatever one does, nor does it."""

    async def shutdown(self) -> None:
        await asyncio.Event().wait()

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> FakeStream:
        stream = super().submit(prompt_token_ids, params)
        stream.abort = lambda index=None: None  # type: ignore[method-assign]
        return stream


async def test_an_engine_that_hangs_does_not_hold_up_the_end(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("api.context.ABORT_TIMEOUT_S", 0.1)
    monkeypatch.setattr("application.ABORT_TIMEOUT_S", 0.1)
    running = await start(Hanging(token_interval=60), shutdown_timeout=0)
    async with running.ready_socket() as client:
        await client.send("send", content="hello")
        await client.skip_to("delta")
        async with asyncio.timeout(5):
            await running.stop()
        await client.socket.wait_closed()
        assert client.socket.close_code == 1001
    complaints = [r.getMessage() for r in caplog.records if r.name == "api.context"]
    assert complaints == [
        "shutdown: what ran did not end when aborted; going on without it",
        "shutdown: the engine did not end; going on without it",
    ]
