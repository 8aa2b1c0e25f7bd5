"""Turns that are refused, that meet another, or whose engine is not there: nothing of them is left behind."""

import asyncio

import pytest

from chat.errors import ConversationBusyError, NotFoundError, ShuttingDownError
from chat.service import ChatService
from engine.errors import EngineDeadError, EngineNotReadyError, RequestError
from engine.stats import EngineStatus
from tests.chat.fakes import ManualEngine
from tests.chat.reading import assert_complete, read_to_end, reasons
from tests.chat.turns import answer, view


@pytest.mark.parametrize(
    ("content", "options", "param", "code"),
    [
        ("  ", {}, "content", "invalid_value"),
        ("half \ud83d", {}, "content", "invalid_value"),
        ("x" * 3000, {}, "content", "context_length_exceeded"),
        ("hi", {"n": 0}, "n", "invalid_value"),
        ("hi", {"n": 65}, "n", "invalid_value"),
        ("hi", {"sampling": {"temperature": 2.5}}, "sampling.temperature", "invalid_value"),
        ("hi", {"sampling": {"warmth": 1}}, "sampling.warmth", "unknown_field"),
    ],
)
async def test_what_cannot_run_is_refused_and_stores_nothing(
    chat: ChatService, engine: ManualEngine, content: str, options: dict, param: str, code: str
) -> None:
    with pytest.raises(RequestError) as refused:
        await chat.send(content, **options)
    assert (refused.value.param, refused.value.code) == (param, code)
    assert (await chat.conversations.list()).items == ()
    assert engine.streams == []


async def test_a_refused_turn_leaves_its_conversation_as_it_was_and_free(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await chat.send("one")
    await answer(chat, engine, first, "uno")
    before = await chat.conversations.tree(first.conversation_id)
    with pytest.raises(RequestError):
        await chat.send("x" * 3000, conversation_id=first.conversation_id)
    with pytest.raises(RequestError):
        await chat.edit(first.user_message_id, "x" * 3000)
    with pytest.raises(RequestError):
        await chat.regenerate(first.user_message_id, n=1000)
    assert await chat.conversations.tree(first.conversation_id) == before
    await chat.send("two", conversation_id=first.conversation_id)


async def test_unknown_ids_are_not_found(chat: ChatService, engine: ManualEngine) -> None:
    first = await chat.send("one")
    other = await chat.send("other")
    await answer(chat, engine, other, "x")
    engine.streams[0].end()
    await read_to_end(chat, first.generation_id)
    unknown = "0" * 32
    calls = {
        "conversation_id": chat.send("x", conversation_id=unknown),
        "parent_id": chat.send("x", parent_id=unknown),
        "message_id": chat.regenerate(unknown),
    }
    calls_too = {
        "parent_id": chat.send(
            "x", conversation_id=first.conversation_id, parent_id=other.user_message_id
        ),
        "message_id": chat.edit(unknown, "x"),
    }
    for param, call in [*calls.items(), *calls_too.items(), ("message_id", chat.select(unknown))]:
        with pytest.raises(NotFoundError) as refused:
            await call
        assert refused.value.param == param
    await chat.conversations.hide(first.conversation_id)
    with pytest.raises(NotFoundError):
        await chat.send("x", conversation_id=first.conversation_id)
    with pytest.raises(NotFoundError):
        await chat.regenerate(first.user_message_id)


async def test_one_generation_per_conversation(chat: ChatService, engine: ManualEngine) -> None:
    first = await chat.send("one")
    before = await chat.conversations.tree(first.conversation_id)
    for call in (
        chat.send("two", conversation_id=first.conversation_id),
        chat.regenerate(first.user_message_id),
        chat.edit(first.user_message_id, "uno"),
    ):
        with pytest.raises(ConversationBusyError):
            await call
    assert await chat.conversations.tree(first.conversation_id) == before
    assert len(engine.streams) == 1


async def test_a_double_submit_is_one_turn_and_one_refusal(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await chat.send("one")
    await answer(chat, engine, first, "uno")
    results = await asyncio.gather(
        *(chat.send("two", conversation_id=first.conversation_id) for _ in range(3)),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == [
        "ConversationBusyError",
        "ConversationBusyError",
        "Started",
    ]
    tree = await chat.conversations.tree(first.conversation_id)
    assert [m.content for m in tree.messages] == ["one", "uno", "two", ""]


async def test_a_conversation_is_free_when_finished_arrives(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await chat.send("one")
    for _ in range(5):
        with chat.attach(first.generation_id) as subscription:
            await asyncio.sleep(0)
            engine.streams[-1].end()
            _ = [event async for event in subscription]
            first = await chat.send("more", conversation_id=first.conversation_id)


async def test_a_turn_goes_on_when_its_caller_is_cancelled(
    chat: ChatService, engine: ManualEngine
) -> None:
    caller = asyncio.create_task(chat.send("one"))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await engine.submitted.wait()
    (item,) = (await chat.conversations.list()).items
    assert item.running


async def test_while_the_model_loads_nothing_is_stored_and_history_is_readable(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await chat.send("one")
    await answer(chat, engine, first, "uno")
    engine.status = EngineStatus("loading", "reading weights", 0.5)
    with pytest.raises(EngineNotReadyError):
        await chat.send("two", conversation_id=first.conversation_id)
    assert [m.content for m in (await view(chat, first)).messages] == ["one", "uno"]


async def test_an_engine_that_dies_at_submit_shows_and_stores_the_error(
    chat: ChatService, engine: ManualEngine
) -> None:
    engine.submit_error = EngineDeadError("the worker thread failed")
    started = await chat.send("one", n=2)
    events = await read_to_end(chat, started.generation_id)
    assert_complete(events)
    assert reasons(events) == {0: "error", 1: "error"}
    assert [getattr(event, "error", None) for event in events[:2]] == [
        "the worker thread failed"
    ] * 2
    tree = await chat.conversations.tree(started.conversation_id)
    assert [m.status for m in tree.messages] == ["done", "error", "error"]
    engine.submit_error = None
    await chat.regenerate(started.user_message_id)


async def test_after_shutdown_no_turn_begins(chat: ChatService) -> None:
    await chat.shutdown(0.0)
    with pytest.raises(ShuttingDownError):
        await chat.send("late")
