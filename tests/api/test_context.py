"""The end of the server, seen by HTTP clients that have something running."""

import asyncio
import json

from tests.api.conftest import Start
from tests.fake_engine import FakeEngine

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
