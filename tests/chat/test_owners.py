"""Whose requests are: remembered when a turn begins, the oldest forgotten."""

from chat.owners import MAX_OWNERS, Owner, RequestOwners
from chat.service import ChatService
from tests.chat.fakes import ManualEngine


async def test_a_turn_owns_its_request(chat: ChatService, engine: ManualEngine) -> None:
    started = await chat.send("How do boats float?")
    await engine.submitted.wait()
    owner = chat.owners.find(engine.streams[0].request_id)
    assert owner == Owner(started.conversation_id, started.generation_id, "How do boats float?")
    assert chat.owners.find(999) is None


async def test_a_renamed_conversation_has_its_new_title(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("How do boats float?")
    await engine.submitted.wait()
    await chat.conversations.update(started.conversation_id, {"title": "  Boats "})
    owner = chat.owners.find(engine.streams[0].request_id)
    assert owner == Owner(started.conversation_id, started.generation_id, "Boats")


def test_requests_of_other_conversations_keep_their_title() -> None:
    owners = RequestOwners()
    for request_id, conversation_id in enumerate("aba"):
        owners.note(request_id, Owner(conversation_id, "g", "t"))
    owners.rename("a", "new")
    titles = [owner.title for i in range(3) if (owner := owners.find(i))]
    assert titles == ["new", "t", "new"]


def test_the_oldest_are_forgotten() -> None:
    owners = RequestOwners()
    for request_id in range(MAX_OWNERS + 1):
        owners.note(request_id, Owner(str(request_id), "g", "t"))
    assert owners.find(0) is None
    assert owners.find(MAX_OWNERS) == Owner(str(MAX_OWNERS), "g", "t")
