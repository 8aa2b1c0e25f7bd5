"""Prompts that do not fit: refused, or made without the oldest turns."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from chat.events import Started
from chat.service import ChatService
from engine.errors import RequestError
from tests.chat.fakes import ManualEngine
from tests.chat.test_service import answer, view
from tests.fake_engine import FakeEngine

# The fake's context is 2,048 tokens, one for each byte.
LONG = "x" * 600


async def fill(chat: ChatService, engine: ManualEngine) -> Started:
    """A conversation of three turns that nearly fill the context."""
    first = await chat.send("a" + LONG)
    await answer(chat, engine, first, "one")
    for letter in "bc":
        turn = await chat.send(letter + LONG, conversation_id=first.conversation_id)
        await answer(chat, engine, turn, "said")
    return first


async def test_a_full_context_stops_unless_the_conversation_says_otherwise(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await fill(chat, engine)
    with pytest.raises(RequestError) as refused:
        await chat.send("d" + LONG, conversation_id=first.conversation_id)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "content")
    assert len((await view(chat, first)).messages) == 6


async def test_the_oldest_turns_are_left_out_of_the_prompt_and_stay_in_the_conversation(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await fill(chat, engine)
    await chat.conversations.update(first.conversation_id, {"when_full": "drop_oldest"})
    await chat.conversations.update(first.conversation_id, {"system_prompt": "be kind"})
    turn = await chat.send("d" + LONG, conversation_id=first.conversation_id)
    assert turn.dropped_messages == 4
    await asyncio.sleep(0)
    assert engine.prompts[-1] == f"<system>be kind\n<user>c{LONG}\n<assistant>said\n<user>d{LONG}\n"
    shown = await view(chat, first)
    assert [m.content[0] for m in shown.messages if m.role == "user"] == ["a", "b", "c", "d"]
    assert shown.messages[-1].dropped_messages == 4


async def test_no_more_is_left_out_than_an_answer_needs(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await fill(chat, engine)
    await chat.conversations.update(first.conversation_id, {"when_full": "drop_oldest"})
    short = await chat.send(
        "d" * 150, conversation_id=first.conversation_id, sampling={"max_tokens": 10}
    )
    assert short.dropped_messages == 0
    await answer(chat, engine, short, "said")
    again = await chat.regenerate(short.candidates[0].message_id)
    assert again.dropped_messages == 2


async def test_what_is_too_long_in_any_tokens_is_refused_before_it_is_tokenised(
    chat: ChatService, engine: ManualEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await fill(chat, engine)
    monkeypatch.setattr(FakeEngine, "most_characters", 2000)
    rendered: list[int] = []
    render_chat = engine.render_chat

    async def noted(messages: Sequence[Mapping[str, Any]]) -> list[int]:
        rendered.append(len(messages))
        return await render_chat(messages)

    monkeypatch.setattr(engine, "render_chat", noted)
    with pytest.raises(RequestError) as refused:
        await chat.send("d" + LONG, conversation_id=first.conversation_id)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "content")
    assert refused.value.message == (
        "the prompt has 2,415 characters; in the 2,048 tokens of the context there is room for 2,000 at the very most"
    )
    assert rendered == []
    await chat.conversations.update(first.conversation_id, {"when_full": "drop_oldest"})
    turn = await chat.send("d" + LONG, conversation_id=first.conversation_id)
    assert turn.dropped_messages == 4
    assert max(rendered) == 5


async def test_a_message_that_never_fits_is_refused_all_the_same(
    chat: ChatService, engine: ManualEngine
) -> None:
    first = await fill(chat, engine)
    await chat.conversations.update(first.conversation_id, {"when_full": "drop_oldest"})
    with pytest.raises(RequestError) as refused:
        await chat.send("d" * 3000, conversation_id=first.conversation_id)
    assert refused.value.code == "context_length_exceeded"
