"""Turns: what is stored when, what the model is shown, what is refused and leaves nothing behind."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing

import pytest

from chat.errors import ConversationBusyError, NotFoundError, ShuttingDownError
from chat.events import ConversationView, Started
from chat.service import ChatService
from engine.errors import EngineDeadError, EngineNotReadyError, RequestError
from engine.outputs import FinishReason
from engine.sampling_params import SamplingParams
from engine.stats import EngineStatus
from storage.records import AnswerText
from storage.storage import Storage
from tests.chat.fakes import ManualEngine, ManualStream
from tests.chat.reading import assert_complete, read_to_end, reasons, texts
from tests.fake_engine import FakeEngine


async def answer(chat: ChatService, engine: ManualEngine, started: Started, *said: str) -> None:
    """Let the engine answer the newest request, one text per candidate."""
    await asyncio.sleep(0)
    for index, text in enumerate(said):
        engine.streams[-1].text(text, index)
        engine.streams[-1].end(index)
    await read_to_end(chat, started.generation_id)


async def view(chat: ChatService, started: Started) -> ConversationView:
    return await chat.conversations.view(started.conversation_id)


async def test_a_turn_streams_and_is_stored(chat: ChatService, engine: ManualEngine) -> None:
    started = await chat.send("What is\nthe tallest mountain?")
    await asyncio.sleep(0)
    stream = engine.streams[0]
    stream.progress()
    for text in ("Mount ", "", "Everest"):
        stream.text(text)
    stream.end()
    events = await read_to_end(chat, started.generation_id)
    assert_complete(events)
    assert len(events) == 5, "an empty delta is not an event"
    assert texts(events) == {0: "Mount Everest"}
    shown = await view(chat, started)
    user, reply = shown.messages
    assert (user.id, user.content) == (started.user_message_id, "What is\nthe tallest mountain?")
    assert (reply.id, reply.content, reply.status) == (
        started.candidates[0].message_id,
        "Mount Everest",
        "done",
    )
    assert reply.usage == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert reply.timings is not None
    assert reply.timings["tokens_per_second"] == 4.0
    assert reply.kv == {
        "blocks_private": 1,
        "blocks_shared": 2,
        "blocks_released": 3,
        "release_ms": 0.5,
    }
    assert shown.conversation.title == "What is the tallest mountain?"
    assert (shown.generation_id, shown.conversation.running) == (None, False)


async def test_rows_are_stored_before_the_engine_starts(
    chat: ChatService, engine: ManualEngine, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows() -> list[tuple[str, str]]:
        """What another connection sees at this moment."""
        path = storage.database._url.database
        assert path is not None
        with closing(sqlite3.connect(path)) as connection:
            query = "select role, status from messages order by created_at"
            return connection.execute(query).fetchall()

    seen: list[list[tuple[str, str]]] = []
    submit = engine.submit

    def watching_submit(prompt_token_ids: Sequence[int], params: SamplingParams) -> ManualStream:
        seen.append(rows())
        return submit(prompt_token_ids, params)

    monkeypatch.setattr(engine, "submit", watching_submit)
    await chat.send("hi", n=2)
    await engine.submitted.wait()
    assert seen == [[("user", "done"), ("assistant", "generating"), ("assistant", "generating")]]


async def test_the_prompt_is_system_prompt_path_and_message(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await chat.send("one")
    await answer(chat, engine, first, "uno")
    conversation_id = first.conversation_id
    await chat.conversations.update(first.conversation_id, {"system_prompt": "be brief"})
    second = await chat.send("two", conversation_id=conversation_id)
    await asyncio.sleep(0)
    engine.streams[-1].text("dos (half")
    engine.streams[-1].end(0, FinishReason.ABORT)
    await read_to_end(chat, second.generation_id)
    third = await chat.send("three", conversation_id=conversation_id)
    await answer(chat, engine, third, "")
    await chat.send("four", conversation_id=conversation_id)
    await asyncio.sleep(0)
    assert engine.prompts == [
        "<user>one\n",
        "<system>be brief\n<user>one\n<assistant>uno\n<user>two\n",
        "<system>be brief\n<user>one\n<assistant>uno\n<user>two\n<assistant>dos (half\n<user>three\n",
        "<system>be brief\n<user>one\n<assistant>uno\n<user>two\n<assistant>dos (half\n"
        "<user>three\n<user>four\n",
    ]


async def test_sampling_frame_over_conversation_over_default(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await chat.send("one")
    await answer(chat, engine, first, "x")
    await chat.conversations.update(
        first.conversation_id, {"sampling": {"top_p": 0.5, "temperature": 0.1, "max_tokens": 9}}
    )
    sampling = {"temperature": 0.2, "top_p": None, "max_completion_tokens": 7, "seed": 2**64 - 1}
    await chat.send("two", conversation_id=first.conversation_id, n=2, sampling=sampling)
    await asyncio.sleep(0)
    default, merged = engine.params
    assert (default.temperature, default.n) == (0.8, 1)
    assert (merged.temperature, merged.top_p, merged.max_tokens, merged.n) == (0.2, 0.5, 7, 2)
    shown = await view(chat, first)
    assert [m.seed for m in shown.candidates] == [2**64 - 1, 0]
    assert shown.candidates[0].sampling == {
        "temperature": 0.2,
        "top_p": 0.5,
        "max_tokens": 7,
        "seed": 2**64 - 1,
    }


async def test_every_candidate_may_have_its_own_temperature(
    chat: ChatService, engine: ManualEngine
) -> None:
    sampling = {"temperatures": [0, 1.5], "top_p": 0.9}
    started = await chat.send("one", n=2, sampling=sampling)
    await asyncio.sleep(0)
    assert engine.params[0].temperatures == (0.0, 1.5)
    shown = await view(chat, started)
    assert [m.sampling for m in shown.candidates] == [
        {"temperature": 0.0, "top_p": 0.9},
        {"temperature": 1.5, "top_p": 0.9},
    ]


async def test_an_unasked_seed_is_drawn_and_kept(chat: ChatService, engine: ManualEngine) -> None:
    started = await chat.send("one", n=2)
    await asyncio.sleep(0)
    first, second = (message.seed for message in (await view(chat, started)).candidates)
    assert first == engine.params[0].seed
    assert (first, second) == (first, (first or 0) + 1)
    assert 0 <= (first or 0) < 2**32


async def test_a_new_conversation_may_bring_its_system_prompt(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.start_conversation("hello", system_prompt="be kind")
    await asyncio.sleep(0)
    assert engine.prompts == ["<system>be kind\n<user>hello\n"]
    shown = await view(chat, started)
    assert shown.conversation.system_prompt == "be kind"
    assert shown.messages[1].model == "fake"
    with pytest.raises(RequestError, match="at most 100000"):
        await chat.start_conversation("hello", system_prompt="x" * 100_001)


async def test_a_failed_answer_keeps_its_reason(chat: ChatService, engine: ManualEngine) -> None:
    started = await chat.send("hello")
    await asyncio.sleep(0)
    engine.streams[0].end(reason=FinishReason.ERROR, error="out of luck")
    await read_to_end(chat, started.generation_id)
    reply = (await view(chat, started)).messages[1]
    assert (reply.status, reply.error) == ("error", "out of luck")


async def test_candidates_stay_open_until_one_is_picked(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hi", n=3)
    ids = [candidate.message_id for candidate in started.candidates]
    await answer(chat, engine, started, "a", "b", "c")
    shown = await view(chat, started)
    assert shown.conversation.open_generation_id == started.generation_id
    assert shown.conversation.head_id == ids[0]
    assert [(m.id, m.content) for m in shown.candidates] == list(zip(ids, "abc", strict=True))
    selected = await chat.select(ids[2])
    assert (selected.message_id, selected.head_id) == (ids[2], ids[2])
    shown = await view(chat, started)
    assert (shown.candidates, shown.conversation.open_generation_id) == ((), None)
    assert shown.messages[-1].content == "c"
    assert shown.messages[-1].sibling_ids == tuple(ids)


async def test_sending_on_closes_open_candidates(chat: ChatService, engine: ManualEngine) -> None:
    started = await chat.send("hi", n=2)
    await answer(chat, engine, started, "a", "b")
    await chat.send("next", conversation_id=started.conversation_id)
    assert (await view(chat, started)).conversation.open_generation_id is None


async def test_regenerate_makes_siblings_of_an_answer_and_answers_of_a_user_turn(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await chat.send("hi")
    await answer(chat, engine, first, "a")
    again = await chat.regenerate(first.candidates[0].message_id, n=2)
    await answer(chat, engine, again, "b", "c")
    more = await chat.regenerate(first.user_message_id)
    await answer(chat, engine, more, "d")
    assert again.user_message_id == more.user_message_id == first.user_message_id
    assert engine.prompts == ["<user>hi\n"] * 3
    shown = await view(chat, first)
    expected = [first.candidates[0], *again.candidates, more.candidates[0]]
    assert shown.messages[1].sibling_ids == tuple(c.message_id for c in expected)
    assert shown.messages[1].content == "d"


async def test_edit_makes_a_sibling_and_answers_it(chat: ChatService, engine: ManualEngine) -> None:
    first = await chat.send("one")
    await answer(chat, engine, first, "uno")
    second = await chat.send("two", conversation_id=first.conversation_id)
    await answer(chat, engine, second, "dos")
    edited = await chat.edit(second.user_message_id, "zwei")
    await answer(chat, engine, edited, "drei")
    assert engine.prompts[-1] == "<user>one\n<assistant>uno\n<user>zwei\n"
    shown = await view(chat, first)
    assert [m.content for m in shown.messages] == ["one", "uno", "zwei", "drei"]
    assert shown.messages[2].sibling_ids == (second.user_message_id, edited.user_message_id)
    with pytest.raises(RequestError) as refused:
        await chat.edit(edited.candidates[0].message_id, "no")
    assert refused.value.param == "message_id"
    selected = await chat.select(second.user_message_id)
    assert selected.head_id == second.candidates[0].message_id


async def test_parent_id_says_where_to_go_on(chat: ChatService, engine: ManualEngine) -> None:
    first = await chat.send("one")
    await answer(chat, engine, first, "uno")
    second = await chat.send("two", conversation_id=first.conversation_id)
    await answer(chat, engine, second, "dos")
    branch = await chat.send("else", parent_id=first.candidates[0].message_id)
    assert branch.conversation_id == first.conversation_id
    await answer(chat, engine, branch, "x")
    assert [m.content for m in (await view(chat, first)).messages] == ["one", "uno", "else", "x"]


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


async def test_start_interrupts_what_a_crash_left(storage: Storage, engine: ManualEngine) -> None:
    before = ChatService(engine, storage)
    started = await before.send("one")
    await storage.conversations.save_texts(
        {started.candidates[0].message_id: AnswerText("half", ())}
    )
    after = ChatService(engine, storage)
    await after.start()
    reply = (await after.conversations.view(started.conversation_id)).messages[1]
    assert (reply.status, reply.content) == ("interrupted", "half")
    await after.shutdown(0.0)
    await before.shutdown(0.0)


async def test_with_the_scripted_engine_many_chats_at_once(storage: Storage) -> None:
    chat = ChatService(FakeEngine(), storage)
    started = await asyncio.gather(*(chat.send(f"chat {i}", n=2) for i in range(8)))
    for each in started:
        events = await read_to_end(chat, each.generation_id)
        assert_complete(events)
        expected = {i: "".join(f"word{i}-{k} " for k in range(12)) for i in range(2)}
        assert texts(events) == expected
        tree = await chat.conversations.tree(each.conversation_id)
        assert [m.content for m in tree.messages[1:]] == list(expected.values())
    await chat.shutdown(1.0)
