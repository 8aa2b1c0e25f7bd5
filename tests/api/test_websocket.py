"""Chats over /ws/chat: turns, streams that are left and found again, stops, the end."""

import asyncio
import logging

import pytest
from websockets.exceptions import ConnectionClosed

from engine.stats import EngineStatus
from tests.api.conftest import Running, Start
from tests.api.talk import ANSWER, chat, text_of
from tests.fake_engine import FakeEngine


async def test_ready_comes_first(running: Running) -> None:
    async with running.socket() as client:
        frame = await client.receive()
    assert frame == {"type": "ready", "protocol": 1, "model": "fake", "max_model_len": 2048}


async def test_send_streams_numbered_events_to_the_end(running: Running) -> None:
    async with running.ready_socket() as client:
        started, events = await chat(client, content="hello", n=2, request_id="r1")
    assert started["request_id"] == "r1"
    assert [c["index"] for c in started["candidates"]] == [0, 1]
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert {event["generation_id"] for event in events} == {started["generation_id"]}
    assert text_of(events) == ANSWER
    ends = [event for event in events if event["type"] == "candidate"]
    assert sorted(end["index"] for end in ends) == [0, 1]
    usage = ends[0]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert ends[0]["kv"].keys() == {
        "blocks_private",
        "blocks_shared",
        "blocks_released",
        "release_ms",
    }


async def test_regenerate_edit_and_select_walk_the_tree(running: Running) -> None:
    async with running.ready_socket() as client:
        first, _ = await chat(client, content="one")
        answer = first["candidates"][0]["message_id"]
        await client.send("regenerate", message_id=answer, n=3)
        again = await client.expect("started")
        await client.until("finished")
        assert again["user_message_id"] == first["user_message_id"]
        assert len(again["candidates"]) == 3
        await client.send("edit", message_id=first["user_message_id"], content="two")
        edited = await client.expect("started")
        await client.until("finished")
        assert edited["user_message_id"] != first["user_message_id"]
        await client.send("select", message_id=answer, request_id=7)
        selected = await client.expect("selected")
    assert selected == {
        "type": "selected",
        "request_id": 7,
        "conversation_id": first["conversation_id"],
        "message_id": answer,
        "head_id": answer,
    }


async def test_continue_shows_the_kept_text_by_a_snapshot_and_streams_what_is_new(
    running: Running,
) -> None:
    async with running.ready_socket() as client:
        first, _ = await chat(client, content="one")
        answer = first["candidates"][0]["message_id"]
        kept = ANSWER[:7]
        await client.send("continue", message_id=answer, at_token=len(kept), n=2, request_id=3)
        started = await client.expect("started")
        assert (started["request_id"], len(started["candidates"])) == (3, 2)
        snapshot = await client.expect("snapshot")
        assert (snapshot["texts"], snapshot["candidates"]) == ([kept, kept], [])
        events = await client.until("finished")
        assert [event["seq"] for event in (snapshot, *events)] == list(range(-1, len(events)))
        assert text_of(events) == ANSWER
        await client.send("attach", generation_id=started["generation_id"])
        assert await client.expect("snapshot") == snapshot
        assert await client.until("finished") == events
        await client.send("continue", message_id=answer, at_token=1000)
        refused = await client.expect("error")
        assert (refused["code"], refused["param"]) == ("invalid_value", "at_token")


async def test_stop_ends_one_candidate_then_all(start: Start) -> None:
    running = await start(FakeEngine(token_interval=0.02))
    async with running.ready_socket() as client:
        await client.send("send", content="hello", n=2)
        generation = (await client.expect("started"))["generation_id"]
        await client.skip_to("delta")
        await client.send("stop", generation_id=generation, index=1)
        end = await client.skip_to("candidate")
        assert (end["index"], end["finish_reason"]) == (1, "abort")
        await client.send("stop", generation_id=generation)
        end = await client.skip_to("candidate")
        assert (end["index"], end["finish_reason"]) == (0, "abort")
        await client.expect("finished")


async def test_a_stop_that_comes_too_late_is_answered_if_it_asks(start: Start) -> None:
    """With the event that told of the end; a client that does not tell its frames apart gets no event twice."""
    running = await start(FakeEngine())
    async with running.ready_socket() as client:
        await client.send("send", content="hello", n=2)
        generation = (await client.expect("started"))["generation_id"]
        events = await client.until("finished")
        await client.send("stop", generation_id=generation)
        await client.send("stop", generation_id=generation, index=1)
        await client.send("stop", generation_id=generation, request_id="a")
        assert await client.receive() == events[-1] | {"request_id": "a"}
        await client.send("stop", generation_id=generation, index=1, request_id="b")
        (ended,) = [e for e in events if e["type"] == "candidate" and e["index"] == 1]
        assert await client.receive() == ended | {"request_id": "b"}


async def test_request_ids_may_repeat_and_end_nobody_elses_answer(start: Start) -> None:
    running = await start(FakeEngine(token_interval=0.01))
    async with running.ready_socket() as first, running.ready_socket() as second:
        generations = []
        for client in (first, second):
            await client.send("send", content="hello", request_id="same")
            started = await client.expect("started")
            assert started["request_id"] == "same"
            generations.append(started["generation_id"])
        await first.send("stop", generation_id=generations[0], request_id="same")
        end = await first.skip_to("candidate")
        assert end["finish_reason"] == "abort"
        await first.expect("finished")
        assert text_of(await second.until("finished")) == ANSWER
        _, again = await chat(first, content="once more", request_id="same")
        assert text_of(again) == ANSWER


async def test_attach_replays_from_a_number_and_follows(start: Start) -> None:
    running = await start(FakeEngine(token_interval=0.02))
    async with running.ready_socket() as first, running.ready_socket() as second:
        await first.send("send", content="hello")
        generation = (await first.expect("started"))["generation_id"]
        await first.skip_to("delta")
        await second.send("attach", generation_id=generation, from_seq=1)
        seen, replayed = await first.until("finished"), await second.until("finished")
        assert [event["seq"] for event in replayed] == list(range(1, replayed[-1]["seq"] + 1))
        assert text_of(replayed) == ANSWER
        await first.send("attach", generation_id=generation)
        whole = await first.until("finished")
        assert [event["seq"] for event in whole] == list(range(len(whole)))
        assert whole[-len(seen) :] == seen


async def test_a_lost_socket_does_not_stop_a_generation(start: Start) -> None:
    running = await start(FakeEngine(token_interval=0.02))
    async with running.ready_socket() as first:
        await first.send("send", content="hello")
        generation = (await first.expect("started"))["generation_id"]
    async with running.ready_socket() as second:
        await second.send("attach", generation_id=generation)
        events = await second.until("finished")
    assert text_of(events) == ANSWER
    assert events[-2]["finish_reason"] == "stop"


async def test_an_orphan_is_aborted(start: Start) -> None:
    running = await start(FakeEngine(token_interval=0.05), orphan_timeout=0.05)
    async with running.ready_socket() as first, running.ready_socket() as second:
        await second.send("subscribe", topic="conversations")
        await second.expect("conversations")
        await first.send("send", content="hello")
        generation = (await first.expect("started"))["generation_id"]
        await first.socket.close()
        while (await second.skip_to("conversation_changed"))["item"]["running"]:
            pass
        await second.send("attach", generation_id=generation)
        ends = [f for f in await second.until("finished") if f["type"] == "candidate"]
    assert [end["finish_reason"] for end in ends] == ["abort"]


async def test_loading_is_shown_and_history_can_be_read(start: Start) -> None:
    engine = FakeEngine()
    engine.status = EngineStatus("loading", "reading weights", 0.25)
    running = await start(engine)
    async with running.socket() as client:
        frame = await client.expect("loading")
        assert frame == {"type": "loading", "stage": "reading weights", "fraction": 0.25}
        await client.send("send", content="hello", request_id=1)
        error = await client.expect("error")
        assert (error["code"], error["request_id"]) == ("loading", 1)
        await client.send("subscribe", topic="conversations")
        assert (await client.expect("conversations"))["items"] == []
        engine.status = EngineStatus("loading", "warming up", 0.9)
        assert (await client.expect("loading"))["stage"] == "warming up"
        engine.status = EngineStatus("ready", "ready", 1.0)
        await client.expect("ready")


async def test_shutdown_ends_streams_then_closes_with_1001(start: Start) -> None:
    running = await start(FakeEngine(token_interval=0.05), shutdown_timeout=0)
    async with running.ready_socket() as client:
        await client.send("send", content="hello")
        await client.skip_to("delta")
        stopping = asyncio.create_task(running.stop())
        end = await client.skip_to("candidate")
        assert end["finish_reason"] == "abort"
        await client.expect("finished")
        with pytest.raises(ConnectionClosed) as closed:
            await client.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        await stopping
    assert running.context.sockets == set()


async def test_leaving_in_the_middle_leaves_nothing(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(FakeEngine(token_interval=0.001))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            async with running.ready_socket("?format=html") as client:
                for topic in ("conversations", "stats", "requests", "blocks"):
                    await client.send("subscribe", topic=topic)
                await client.send("send", content="hello", n=3)
                await client.socket.recv()
                client.socket.transport.abort()
        await running.stop()
    assert running.context.sockets == set()
    assert caplog.records == []
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert [task for task in others if "api/" in str(task.get_coro())] == []
