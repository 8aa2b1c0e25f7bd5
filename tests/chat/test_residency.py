"""What going on in a branch would cost, with an engine that keeps all it has computed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chat.errors import NotFoundError
from chat.events import Message
from chat.service import ChatService
from engine.errors import RequestError
from storage.storage import Storage
from tests.chat.fakes import FakeClock
from tests.chat.reading import exported, read_to_end
from tests.fake_engine import FakeEngine


@pytest.fixture
async def served(storage: Storage) -> AsyncIterator[tuple[ChatService, FakeEngine]]:
    engine = FakeEngine(lambda prompt, index: [f"answer {index} of a few words"])
    chat = ChatService(engine, storage, clock=FakeClock())
    await chat.start()
    yield chat, engine
    await chat.shutdown(0.0)


async def test_each_branch_knows_what_it_would_cost(
    served: tuple[ChatService, FakeEngine],
) -> None:
    chat, engine = served
    started = await chat.send("a question of some length", n=2)
    await read_to_end(chat, started.generation_id)
    first, second = (candidate.message_id for candidate in started.candidates)
    text = b"<user>a question of some length\n<assistant>answer 0 of a few words\n"
    found = await chat.residency(first)
    assert (found.message_id, found.leaf_id) == (first, first)
    assert found.prompt_tokens == len(text)
    assert len(text) - 32 < found.cached_tokens < len(text)
    assert found.instant
    assert engine.rendered[-1][1].add_generation_prompt is False
    engine.computed.clear()
    cold = await chat.residency(second)
    assert (cold.prompt_tokens, cold.cached_tokens, cold.instant) == (len(text), 0, False)


async def test_a_message_stands_for_the_leaf_that_would_be_shown(
    served: tuple[ChatService, FakeEngine],
) -> None:
    chat, _ = served
    started = await chat.send("one")
    await read_to_end(chat, started.generation_id)
    again = await chat.send("two", conversation_id=started.conversation_id)
    await read_to_end(chat, again.generation_id)
    found = await chat.residency(started.user_message_id)
    assert found.leaf_id == again.candidates[0].message_id
    assert found.prompt_tokens == (await chat.residency(found.leaf_id)).prompt_tokens


async def exported_turn(chat: ChatService) -> dict[str, Any]:
    """The export of a conversation of one turn."""
    started = await chat.send("one")
    await read_to_end(chat, started.generation_id)
    return await exported(chat, started.conversation_id)


async def imported_question(chat: ChatService, file: dict[str, Any]) -> Message:
    """The first message of the conversation that a file holds."""
    (imported,) = (await chat.conversations.import_document(file)).conversation_ids
    return (await chat.conversations.tree(imported)).messages[0]


async def test_a_branch_that_no_context_holds_is_not_tokenised(
    served: tuple[ChatService, FakeEngine],
) -> None:
    chat, engine = served
    file = await exported_turn(chat)
    file["messages"][1]["content"] = "x" * (engine.most_characters + 1)
    question = await imported_question(chat, file)
    num_rendered = len(engine.rendered)
    with pytest.raises(RequestError, match=r"there is room for [\d,]+ at the very most") as refused:
        await chat.residency(question.id)
    assert (refused.value.param, refused.value.code) == ("message_id", "context_length_exceeded")
    assert len(engine.rendered) == num_rendered


async def test_a_branch_of_more_messages_than_tokens_is_not_tokenised(
    served: tuple[ChatService, FakeEngine],
) -> None:
    chat, engine = served
    file = await exported_turn(chat)
    first = file["messages"][0]
    count = engine.info.max_model_len + 1
    file["messages"] = [
        first | {"id": str(i), "parent_id": str(i - 1) if i else None, "content": "a"}
        for i in range(count)
    ]
    file["conversation"]["head_id"] = str(count - 1)
    question = await imported_question(chat, file)
    with pytest.raises(RequestError, match="at the very most"):
        await chat.residency(question.id)


async def test_a_message_that_is_not_there_is_not_found(
    served: tuple[ChatService, FakeEngine],
) -> None:
    with pytest.raises(NotFoundError):
        await served[0].residency("nothing")
