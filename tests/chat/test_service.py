"""Turns: what is stored when, what the model is shown, and how a tree grows."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing

import pytest

from chat.service import ChatService
from engine.errors import RequestError
from engine.outputs import FinishReason
from engine.sampling_params import SamplingParams
from storage.records import AnswerText
from storage.storage import Storage
from tests.chat.fakes import ManualEngine, ManualStream
from tests.chat.reading import assert_complete, read_to_end, texts
from tests.chat.turns import answer, view
from tests.fake_engine import FakeEngine


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
        "kept_tokens": 0,
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
