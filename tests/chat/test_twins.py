"""A file that is read twice makes no twins, and nothing that is only in the file or only here is lost."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from chat.events import AlreadyHere, Imported
from chat.service import ChatService
from tests.chat.exports import chatgpt, open_webui
from tests.chat.fakes import ManualEngine
from tests.chat.test_conversations import exported


async def all_exported(chat: ChatService) -> dict[str, Any]:
    return json.loads(
        b"".join([piece async for piece in await chat.conversations.export_all_json()])
    )


async def said(chat: ChatService, engine: ManualEngine, text: str) -> str:
    """A conversation of one turn; its id."""
    started = await chat.send(text)
    engine.streams[-1].text("an answer")
    engine.streams[-1].end()
    with chat.attach(started.generation_id) as events:
        async for _ in events:
            pass
    return started.conversation_id


async def test_the_same_files_again_bring_nothing(chat: ChatService) -> None:
    files = [chatgpt(), open_webui()]
    first = await chat.conversations.import_document(files)
    bread, rivers = first.conversation_ids
    assert first.already_here == ()
    again = await chat.conversations.import_document([open_webui(), *files])
    assert again.already_here == (AlreadyHere(1, bread), AlreadyHere(2, rivers))
    assert len(again.conversation_ids) == 1
    assert len((await chat.conversations.list()).items) == 3


async def test_what_a_file_has_several_times_comes_once(chat: ChatService) -> None:
    rivers, bread = open_webui(), chatgpt()
    file = [rivers, bread, rivers | {"title": "Streams"}, rivers]
    brought = await chat.conversations.import_document(file)
    first, _ = brought.conversation_ids
    assert brought.already_here == (AlreadyHere(2, first), AlreadyHere(3, first))
    assert len((await chat.conversations.list()).items) == 2
    assert len((await chat.conversations.import_again(file)).conversation_ids) == 4


async def test_what_is_wanted_twice_is_there_twice(chat: ChatService) -> None:
    file = open_webui()
    first = await chat.conversations.import_document(file)
    second = await chat.conversations.import_again(file)
    assert second.already_here == ()
    assert set(second.conversation_ids).isdisjoint(first.conversation_ids)
    assert len(second.conversation_ids) == 1


async def test_what_went_on_or_was_renamed_here_is_left_as_it_is(
    chat: ChatService, engine: ManualEngine
) -> None:
    file = open_webui()
    (rivers,) = (await chat.conversations.import_document(file)).conversation_ids
    await chat.conversations.update(rivers, {"title": "Streams"})
    await chat.send("And a lake?", conversation_id=rivers)
    engine.streams[-1].end()
    assert (await chat.conversations.import_document(file)).already_here == (
        AlreadyHere(0, rivers),
    )
    view = await chat.conversations.view(rivers)
    assert (view.conversation.title, view.messages[-2].content) == ("Streams", "And a lake?")


def grown(file: dict[str, Any]) -> None:
    history = file["chat"]["history"]
    history["messages"]["c"]["childrenIds"] = ["d"]
    new = history["messages"]["q2"] | {"id": "d", "parentId": "c", "childrenIds": []}
    history["messages"]["d"] = new


def rewritten(file: dict[str, Any]) -> None:
    file["chat"]["history"]["messages"]["b"]["content"] = "The Loire."


def of_another_name(file: dict[str, Any]) -> None:
    file["id"] = "another"


@pytest.mark.parametrize("change", [grown, rewritten, of_another_name])
async def test_what_is_new_in_the_file_is_a_conversation_of_its_own(
    chat: ChatService, change: Callable[[dict[str, Any]], None]
) -> None:
    file = open_webui()
    await chat.conversations.import_document(file)
    change(file)
    imported = await chat.conversations.import_document(file)
    assert (len(imported.conversation_ids), imported.already_here) == (1, ())


async def test_a_new_title_in_the_file_is_no_new_conversation(chat: ChatService) -> None:
    file = chatgpt()
    await chat.conversations.import_document(file)
    assert (await chat.conversations.import_document(file | {"title": "x"})).conversation_ids == ()


async def test_without_an_id_title_date_and_texts_tell(chat: ChatService) -> None:
    file = chatgpt()
    del file["conversation_id"]
    await chat.conversations.import_document(file)
    assert (await chat.conversations.import_document(file)).conversation_ids == ()
    for change in ({"title": "x"}, {"create_time": 5}):
        imported = await chat.conversations.import_document(file | change)
        assert len(imported.conversation_ids) == 1


async def test_what_was_deleted_here_comes_back(chat: ChatService, engine: ManualEngine) -> None:
    foreign = chatgpt()
    (bread,) = (await chat.conversations.import_document(foreign)).conversation_ids
    own = await said(chat, engine, "How do boats float?")
    document = await all_exported(chat)
    for conversation_id in (bread, own):
        await chat.conversations.hide(conversation_id)
    assert len((await chat.conversations.import_document(foreign)).conversation_ids) == 1
    assert len((await chat.conversations.import_document(document)).conversation_ids) == 2


async def test_our_own_export_finds_its_originals_and_its_imports(
    chat: ChatService, engine: ManualEngine
) -> None:
    ids = [await said(chat, engine, "How do boats float?") for _ in range(2)]
    document = await all_exported(chat)
    here = (AlreadyHere(0, ids[1]), AlreadyHere(1, ids[0]))
    assert await chat.conversations.import_document(document) == Imported((), here, (), 0)
    for conversation_id in ids:
        await chat.conversations.purge(conversation_id)
    brought = await chat.conversations.import_document(document)
    here = tuple(AlreadyHere(i, id_) for i, id_ in enumerate(brought.conversation_ids))
    assert (len(here), brought.already_here) == (2, ())
    assert await chat.conversations.import_document(document) == Imported((), here, (), 0)


async def test_an_original_that_lacks_something_of_the_file_is_no_twin(
    chat: ChatService, engine: ManualEngine
) -> None:
    conversation_id = await said(chat, engine, "How do boats float?")
    document = await exported(chat, conversation_id)
    answer = document["messages"][1]
    answer["content"] = "by magic"
    imported = await chat.conversations.import_document(document)
    assert len(imported.conversation_ids) == 1
    document = await exported(chat, conversation_id)
    assert (await chat.conversations.import_document(document)).conversation_ids == ()
    await chat.conversations.hide_branch(answer["id"])
    assert len((await chat.conversations.import_document(document)).conversation_ids) == 1


def in_another_role(messages: list[dict[str, Any]]) -> None:
    messages[-1]["role"] = "user"


def in_another_place(messages: list[dict[str, Any]]) -> None:
    messages[-1]["parent_id"] = messages[0]["id"]


def at_the_root(messages: list[dict[str, Any]]) -> None:
    messages[-1]["parent_id"] = None


@pytest.mark.parametrize("change", [in_another_role, in_another_place, at_the_root])
async def test_an_original_with_another_tree_is_no_twin(
    chat: ChatService, engine: ManualEngine, change: Callable[[list[dict[str, Any]]], None]
) -> None:
    conversation_id = await said(chat, engine, "How do boats float?")
    await chat.send("And ships?", conversation_id=conversation_id)
    engine.streams[-1].end()
    document = await exported(chat, conversation_id)
    change(document["messages"])
    imported = await chat.conversations.import_document(document)
    assert (len(imported.conversation_ids), imported.already_here) == (1, ())
    again = await chat.conversations.import_document(document)
    assert again.already_here == (AlreadyHere(0, imported.conversation_ids[0]),)


async def test_a_copy_made_here_is_not_what_was_imported(chat: ChatService) -> None:
    file = open_webui()
    (rivers,) = (await chat.conversations.import_document(file)).conversation_ids
    await chat.conversations.duplicate(rivers)
    await chat.conversations.hide(rivers)
    assert len((await chat.conversations.import_document(file)).conversation_ids) == 1
