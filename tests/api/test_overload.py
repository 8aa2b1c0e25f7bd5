"""A full queue refuses what is new: 429 before any header, or an error frame and nothing stored."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from openai import AsyncOpenAI, RateLimitError

from engine.waiting_room import WaitingRoom
from tests.api.conftest import Running

HELLO: Any = [{"role": "user", "content": "hello"}]
BODIES = [
    ("/v1/chat/completions", {"messages": HELLO, "stream": True}),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/embeddings", {"input": "a"}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_too_many_that_wait_are_429(running: Running, path: str, body: Any) -> None:
    running.engine.room = WaitingRoom(2)
    give_back = [running.engine.keep_place() for _ in range(2)]
    async with running.http() as http:
        response = await http.post(path, json=body)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) > 0
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
        assert running.context.streams == {}
        give_back[0]()
        assert (await http.post(path, json=body)).status_code == 200


async def test_openais_client_raises_its_own_error(running: Running) -> None:
    running.engine.room = WaitingRoom(1)
    give_back = running.engine.keep_place()
    async with AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(RateLimitError, match="no more than 1 may"):
            await client.chat.completions.create(model="fake", messages=HELLO)
        give_back()
        await client.chat.completions.create(model="fake", messages=HELLO)


async def test_a_socket_is_told_and_nothing_is_stored(running: Running) -> None:
    running.engine.room = WaitingRoom(1)
    give_back = running.engine.keep_place()
    async with running.ready_socket() as client:
        await client.send("send", content="hello", request_id=5)
        error = await client.expect("error")
        assert (error["code"], error["request_id"]) == ("overloaded", 5)
        async with running.http() as http:
            assert (await http.get("/api/conversations")).json()["items"] == []
        give_back()
        await client.send("send", content="hello")
        await client.expect("started")
        await client.until("finished")


async def test_a_burst_of_sockets_stores_no_more_than_may_wait(running: Running) -> None:
    running.engine.room = WaitingRoom(3)
    may_store = asyncio.Event()
    add_turn = running.context.chat._store.add_turn

    async def slow(turn: Any) -> Any:
        await may_store.wait()
        return await add_turn(turn)

    running.context.chat._store.add_turn = slow  # type: ignore[method-assign]
    async with AsyncExitStack() as stack:
        sockets = [running.ready_socket() for _ in range(5)]
        clients = [await stack.enter_async_context(socket) for socket in sockets]
        for client in clients:
            await client.send("send", content="hello")
        ends = [asyncio.create_task(client.skip_to("error", "finished")) for client in clients]
        while sum(end.done() for end in ends) < 2:
            running_ends = [end for end in ends if not end.done()]
            await asyncio.wait(running_ends, return_when=asyncio.FIRST_COMPLETED)
        may_store.set()
        kinds = [(await end)["type"] for end in ends]
    assert sorted(kinds) == ["error"] * 2 + ["finished"] * 3
