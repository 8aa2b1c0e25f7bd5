"""Generations outlive their readers, end by stop, orphan timer, failure or shutdown, and are stored first."""

import asyncio

import pytest

from chat.errors import UnknownGenerationError
from chat.events import Candidate, Finished
from chat.hub import RETENTION
from chat.service import ChatService
from engine.errors import RequestError
from engine.outputs import FinishReason
from storage.errors import StorageError
from storage.storage import Storage
from tests.chat.fakes import FakeClock, ManualEngine
from tests.chat.reading import assert_complete, read, read_to_end, reasons, texts


async def statuses(chat: ChatService, conversation_id: str) -> list[tuple[str, str]]:
    tree = await chat.conversations.tree(conversation_id)
    return [(m.status, m.content) for m in tree.messages if m.role == "assistant"]


async def test_a_final_state_is_stored_before_its_event(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hi", n=2)
    with chat.attach(started.generation_id) as subscription:
        await engine.submitted.wait()
        engine.streams[0].text("a", 0)
        engine.streams[0].end(0)
        assert isinstance((await read(subscription, 2))[1], Candidate)
        assert await statuses(chat, started.conversation_id) == [("done", "a"), ("generating", "")]


async def test_stop_ends_all_candidates_as_stopped(chat: ChatService, engine: ManualEngine) -> None:
    started = await chat.send("hi", n=2)
    await engine.submitted.wait()
    engine.streams[0].text("half", 1)
    with chat.attach(started.generation_id) as subscription:
        await read(subscription, 1)
    chat.stop(started.generation_id)
    events = await read_to_end(chat, started.generation_id)
    assert_complete(events)
    assert reasons(events) == {0: "abort", 1: "abort"}
    assert await statuses(chat, started.conversation_id) == [("stopped", ""), ("stopped", "half")]
    assert engine.streams[0].is_closed
    chat.stop(started.generation_id)


async def test_stop_of_one_candidate_leaves_the_others(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hi", n=3)
    await engine.submitted.wait()
    chat.stop(started.generation_id, 1)
    for index in (0, 2):
        engine.streams[0].text("on", index)
        engine.streams[0].end(index)
    events = await read_to_end(chat, started.generation_id)
    assert reasons(events) == {0: "stop", 1: "abort", 2: "stop"}
    assert texts(events) == {0: "on", 2: "on"}
    assert await statuses(chat, started.conversation_id) == [
        ("done", "on"),
        ("stopped", ""),
        ("done", "on"),
    ]


async def test_stop_names_what_is_wrong(chat: ChatService) -> None:
    with pytest.raises(UnknownGenerationError):
        chat.stop("0" * 32)
    started = await chat.send("hi", n=2)
    for index in (-1, 2):
        with pytest.raises(RequestError) as refused:
            chat.stop(started.generation_id, index)
        assert refused.value.param == "index"


async def test_a_generation_goes_on_without_its_reader_until_the_orphan_timeout(
    chat: ChatService, engine: ManualEngine, clock: FakeClock
) -> None:
    started = await chat.send("hi")
    await engine.submitted.wait()
    with chat.attach(started.generation_id) as subscription:
        engine.streams[0].text("half")
        await read(subscription, 1)
        clock.advance(1000)
    clock.advance(59)
    with chat.attach(started.generation_id, 1):
        clock.advance(1000)
    clock.advance(59)
    assert chat.conversations._hub.running_in(started.conversation_id)
    clock.advance(1)
    events = await read_to_end(chat, started.generation_id)
    assert reasons(events) == {0: "abort"}
    assert await statuses(chat, started.conversation_id) == [("interrupted", "half")]


async def test_two_readers_one_leaves_the_timer_stays_off(
    chat: ChatService, engine: ManualEngine, clock: FakeClock
) -> None:
    started = await chat.send("hi")
    with chat.attach(started.generation_id):
        with chat.attach(started.generation_id):
            pass
        clock.advance(1000)
        await engine.submitted.wait()
        engine.streams[0].end()
        assert reasons(await read_to_end(chat, started.generation_id)) == {0: "stop"}


async def test_nobody_ever_attaching_is_an_orphan_too(
    chat: ChatService, engine: ManualEngine, clock: FakeClock
) -> None:
    started = await chat.send("hi")
    clock.advance(60)
    assert reasons(await read_to_end(chat, started.generation_id)) == {0: "abort"}


async def test_a_finished_generation_stays_attachable_then_is_unknown(
    chat: ChatService, engine: ManualEngine, clock: FakeClock
) -> None:
    started = await chat.send("hi")
    await engine.submitted.wait()
    engine.streams[0].text("x")
    engine.streams[0].end()
    first = await read_to_end(chat, started.generation_id)
    clock.advance(RETENTION - 1)
    assert await read_to_end(chat, started.generation_id) == first
    assert await read_to_end(chat, started.generation_id, 3) == []
    clock.advance(1)
    with pytest.raises(UnknownGenerationError):
        chat.attach(started.generation_id)
    assert clock.num_pending == 0


async def test_an_engine_that_fails_mid_stream_ends_every_candidate(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hi", n=3)
    await engine.submitted.wait()
    stream = engine.streams[0]
    stream.text("half", 1)
    stream.end(2)
    stream.fail(RuntimeError("out of memory"))
    events = await read_to_end(chat, started.generation_id)
    assert_complete(events)
    assert reasons(events) == {2: "stop", 0: "error", 1: "error"}
    assert [e.error for e in events if isinstance(e, Candidate)] == [None] + ["out of memory"] * 2
    assert await statuses(chat, started.conversation_id) == [
        ("error", ""),
        ("error", "half"),
        ("done", ""),
    ]
    assert stream.is_closed


async def test_a_candidate_that_the_engine_ends_with_an_error_is_stored_as_one(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hi")
    await engine.submitted.wait()
    engine.streams[0].end(0, FinishReason.ERROR, "the step failed")
    events = await read_to_end(chat, started.generation_id)
    assert [e.error for e in events if isinstance(e, Candidate)] == ["the step failed"]
    assert await statuses(chat, started.conversation_id) == [("error", "")]


async def test_an_answer_that_cannot_be_stored_says_so(
    chat: ChatService, engine: ManualEngine, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(message_id: str, end: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(storage.conversations, "end_answer", fail)
    started = await chat.send("hi")
    await engine.submitted.wait()
    engine.streams[0].end()
    events = await read_to_end(chat, started.generation_id)
    assert isinstance(events[-1], Finished)
    assert reasons(events) == {0: "error"}
    assert [(e.status, e.error) for e in events if isinstance(e, Candidate)] == [
        ("error", "the answer could not be stored")
    ]


async def test_deleting_a_conversation_stops_what_runs_in_it(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hi")
    await engine.submitted.wait()
    await chat.conversations.hide(started.conversation_id)
    assert reasons(await read_to_end(chat, started.generation_id)) == {0: "abort"}
    await chat.conversations.restore(started.conversation_id)
    assert await statuses(chat, started.conversation_id) == [("stopped", "")]
    again = await chat.regenerate(started.user_message_id)
    await chat.conversations.purge(started.conversation_id)
    assert reasons(await read_to_end(chat, again.generation_id)) == {0: "abort"}


async def test_shutdown_lets_streams_end_then_aborts_the_rest(
    engine: ManualEngine, storage: Storage, clock: FakeClock
) -> None:
    chat = ChatService(engine, storage, clock=clock)
    await chat.start()
    quick, slow = await chat.send("quick"), await chat.send("slow")
    await asyncio.sleep(0)
    engine.streams[0].text("whole")
    engine.streams[0].end()
    engine.streams[1].text("half")
    before = asyncio.all_tasks()
    with chat.attach(slow.generation_id, 0) as subscription:
        await chat.shutdown(0.2)
        told = [event async for event in subscription]
    assert [e.status for e in told if isinstance(e, Candidate)] == ["interrupted"]
    assert await statuses(chat, quick.conversation_id) == [("done", "whole")]
    assert await statuses(chat, slow.conversation_id) == [("interrupted", "half")]
    reply = await storage.conversations.message(slow.candidates[0].message_id)
    assert reply.finish_reason == "abort", "the engine was told, not just left"
    assert asyncio.all_tasks() <= before - {chat._sampling_task}
    assert len(asyncio.all_tasks()) == 1
    assert clock.num_pending == 0


async def test_shutdown_does_not_wait_for_a_deaf_engine(
    engine: ManualEngine, storage: Storage, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chat.hub.ABORT_TIMEOUT", 0.05)
    chat = ChatService(engine, storage, clock=clock)
    started = await chat.send("hi")
    await engine.submitted.wait()
    engine.streams[0].is_deaf = True
    engine.streams[0].text("half")
    with chat.attach(started.generation_id) as subscription:
        await read(subscription, 1)
    await chat.shutdown(0.0)
    assert await statuses(chat, started.conversation_id) == [("interrupted", "half")]
    assert len(asyncio.all_tasks()) == 1
