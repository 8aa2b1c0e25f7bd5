"""/api/messages: where an answer can be cut, where candidates part, what else could have been said."""

import asyncio
from collections.abc import AsyncIterator

from engine.outputs import EngineEvent
from tests.api.conftest import Running, Start
from tests.api.test_conversations import error_of
from tests.api.test_generation import WatchedEngine
from tests.fake_engine import FakeEngine


async def turn(running: Running) -> dict:
    """`started` of a finished turn."""
    async with running.ready_socket() as client:
        await client.send("send", content="hello")
        started = await client.expect("started")
        await client.until("finished")
    return started


async def test_tokens_are_told_by_their_ends_in_characters(start: Start) -> None:
    running = await start(FakeEngine(lambda prompt, index: ["a", "👩", "b"]))
    started = await turn(running)
    async with running.http() as http:
        answer = started["candidates"][0]["message_id"]
        tokens = await http.get(f"/api/messages/{answer}/tokens")
        assert (tokens.status_code, tokens.json()) == (200, {"ends": [1, 2, 2, 2, 2, 3]})


async def test_what_has_no_tokens_is_refused(start: Start) -> None:
    running = await start(FakeEngine(token_interval=0.02))
    started = await turn(running)
    async with running.http() as http, running.ready_socket() as client:
        user = started["user_message_id"]
        refused = await http.get(f"/api/messages/{user}/tokens")
        assert error_of(refused) == (400, "invalid_value", "message_id")
        missing = await http.get("/api/messages/nothing/tokens")
        assert error_of(missing) == (404, "not_found", "message_id")
        await client.send("regenerate", message_id=user)
        answer = (await client.expect("started"))["candidates"][0]["message_id"]
        busy = await http.get(f"/api/messages/{answer}/tokens")
        assert error_of(busy) == (409, "conversation_busy", "message_id")
        assert (await http.post(f"/api/messages/{answer}/tokens")).status_code == 405


async def test_candidates_are_compared(start: Start) -> None:
    running = await start(FakeEngine(lambda prompt, index: ["b", "cd"[index]]))
    async with running.http() as http, running.ready_socket() as client:
        await client.send("send", content="hello", n=2)
        started = await client.expect("started")
        await client.until("finished")
        first, second = (candidate["message_id"] for candidate in started["candidates"])
        partings = await http.get(f"/api/messages/{first}/partings")
        place = {"at_token": 1, "start": 1, "end": 2}
        assert partings.json() == {
            "answers": [{"message_id": first, **place}, {"message_id": second, **place}]
        }
        choices = (await http.get(f"/api/messages/{second}/choices?at_token=1")).json()["choices"]
        assert [(choice["text"], choice["drawn"]) for choice in choices] == [
            (letter, letter == "d") for letter in "abcde"
        ]
        refused = await http.get(f"/api/messages/{second}/choices?at_token=9")
        assert error_of(refused) == (400, "invalid_value", "at_token")
        assert (await http.get(f"/api/messages/{second}/choices")).status_code == 400


class Stuck(WatchedEngine):
    """From the second request on, nothing gets beyond its prompt."""

    async def change(self, events: AsyncIterator[EngineEvent]) -> AsyncIterator[EngineEvent]:
        if len(self.streams) > 1:
            yield await anext(events)
            await asyncio.Event().wait()
        async for event in events:
            yield event


async def test_a_question_whose_client_leaves_is_dropped_by_the_engine(start: Start) -> None:
    engine = Stuck()
    running = await start(engine)
    answer = (await turn(running))["candidates"][0]["message_id"]
    engine.submitted.clear()
    async with running.http() as http, asyncio.timeout(10):
        asking = asyncio.create_task(http.get(f"/api/messages/{answer}/choices?at_token=1"))
        await engine.submitted.wait()
        asking.cancel()
        await engine.streams[1].closed.wait()
    assert (engine.streams[1].aborted, engine.live) == ({0}, {})


async def test_nothing_of_a_question_is_left_behind_its_answer(start: Start) -> None:
    engine = FakeEngine(lambda prompt, index: ["a", "b"])
    running = await start(engine)
    answer = (await turn(running))["candidates"][0]["message_id"]
    async with running.http() as http:
        for _ in range(3):
            assert (await http.get(f"/api/messages/{answer}/choices?at_token=1")).is_success
            assert engine.live == {}
