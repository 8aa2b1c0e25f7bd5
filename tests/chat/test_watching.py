"""Topics: every window sees the same, slow ones see the newest, none leaks."""

import asyncio

import pytest

from chat.bulletin import MAX_CHANGES
from chat.errors import NotFoundError
from chat.events import (
    Candidate,
    ConversationChanged,
    ConversationList,
    ConversationRemoved,
    ConversationView,
    Delta,
    Finished,
    Snapshot,
)
from chat.service import ChatService
from tests.chat.fakes import FakeClock, ManualEngine
from tests.chat.reading import read_to_end


async def finish(chat: ChatService, engine: ManualEngine, generation_id: str) -> None:
    await asyncio.sleep(0)
    engine.streams[-1].end()
    await read_to_end(chat, generation_id)


async def test_the_list_then_every_change_in_every_window(
    chat: ChatService, engine: ManualEngine
) -> None:
    windows = [chat.watch_conversations() for _ in range(2)]
    for window in windows:
        assert await anext(window) == ConversationList((), None)
    started = await chat.send("first words")
    for window in windows:
        event = await anext(window)
        assert isinstance(event, ConversationChanged)
        assert (event.item.title, event.item.running) == ("first words", True)
    await finish(chat, engine, started.generation_id)
    await chat.conversations.update(started.conversation_id, {"title": "renamed"})
    for window in windows:
        event = await anext(window)
        assert isinstance(event, ConversationChanged)
        assert (event.item.title, event.item.running) == ("renamed", False)
    await chat.conversations.hide(started.conversation_id)
    for window in windows:
        assert await anext(window) == ConversationRemoved(started.conversation_id)
    item = await chat.conversations.restore(started.conversation_id)
    for window in windows:
        assert await anext(window) == ConversationChanged(item)
        await window.aclose()
    assert chat._bulletin._watchers == set()


async def test_a_slow_reader_of_the_list_gets_it_anew(chat: ChatService) -> None:
    window = chat.watch_conversations()
    await anext(window)
    started = await chat.send("hi")
    for number in range(MAX_CHANGES + 1):
        chat._bulletin.mark(f"{number}")
    event = await anext(window)
    assert isinstance(event, ConversationList)
    assert [item.id for item in event.items] == [started.conversation_id]
    chat._bulletin.mark(started.conversation_id)
    assert isinstance(await anext(window), ConversationChanged)
    await window.aclose()


async def test_a_window_on_a_conversation_sees_structure_and_stream(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hi")
    await engine.submitted.wait()
    stream = engine.streams[0]
    window = chat.watch_conversation(started.conversation_id)
    view = await anext(window)
    assert isinstance(view, ConversationView)
    assert view.generation_id == started.generation_id
    assert [m.status for m in view.messages] == ["done", "generating"]
    assert await anext(window) == Snapshot(started.generation_id, -1, ("",), ())
    stream.text("word")
    assert await anext(window) == Delta(started.generation_id, 0, 0, "word")
    stream.end()
    rest = [await anext(window) for _ in range(3)]
    assert isinstance(rest[0], Candidate)
    assert rest[1] == Finished(started.generation_id, 2)
    last = rest[2]
    assert isinstance(last, ConversationView)
    assert (last.generation_id, last.messages[1].status) == (None, "done")
    again = await chat.regenerate(started.user_message_id, n=2)
    view = await anext(window)
    assert isinstance(view, ConversationView)
    assert view.generation_id == again.generation_id
    assert [m.id for m in view.candidates] == [c.message_id for c in again.candidates]
    assert isinstance(await anext(window), Snapshot)
    await chat.select(again.candidates[1].message_id)
    view = await anext(window)
    assert isinstance(view, ConversationView)
    assert (view.candidates, view.conversation.head_id) == ((), again.candidates[1].message_id)
    await window.aclose()


async def test_changes_of_other_conversations_are_not_heard(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hi")
    await finish(chat, engine, started.generation_id)
    window = chat.watch_conversation(started.conversation_id)
    await anext(window)
    await chat.send("another")
    await chat.conversations.update(started.conversation_id, {"pinned": True})
    view = await anext(window)
    assert isinstance(view, ConversationView)
    assert view.conversation.pinned
    await window.aclose()


async def test_a_window_keeps_a_generation_from_being_an_orphan_until_it_closes(
    chat: ChatService, engine: ManualEngine, clock: FakeClock
) -> None:
    started = await chat.send("hi")
    window = chat.watch_conversation(started.conversation_id)
    await anext(window)
    await anext(window)
    clock.advance(1000)
    await asyncio.sleep(0)
    assert chat._hub.running_in(started.conversation_id) == started.generation_id
    await window.aclose()
    clock.advance(60)
    await read_to_end(chat, started.generation_id)
    view = await chat.conversations.view(started.conversation_id)
    assert view.messages[1].status == "interrupted"


async def test_a_window_on_a_deleted_conversation_ends(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hi")
    await finish(chat, engine, started.generation_id)
    window = chat.watch_conversation(started.conversation_id)
    await anext(window)
    await chat.conversations.purge(started.conversation_id)
    assert await anext(window) == ConversationRemoved(started.conversation_id)
    with pytest.raises(StopAsyncIteration):
        await anext(window)
    with pytest.raises(NotFoundError):
        await anext(chat.watch_conversation(started.conversation_id))
    assert chat._bulletin._watchers == set()


async def test_a_cancelled_window_leaves_nothing_behind(chat: ChatService) -> None:
    started = await chat.send("hi")
    window = chat.watch_conversation(started.conversation_id)
    await anext(window)
    await anext(window)
    reader = asyncio.ensure_future(anext(window))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert chat._bulletin._watchers == set()
    assert not chat._hub._generations[started.generation_id].subscriptions
