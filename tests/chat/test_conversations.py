"""Listing, changing, deleting, exporting and importing conversations."""

import asyncio
import json
from typing import Any

import pytest

from chat.errors import ConversationBusyError, NotFoundError, ShuttingDownError
from chat.service import ChatService
from chat.wire import to_wire
from engine.errors import RequestError
from engine.stats import EngineStatus
from storage.importing import add_new_imports
from storage.records import StoredImport
from storage.storage import Storage
from tests.chat.exports import chatgpt
from tests.chat.fakes import ManualEngine
from tests.chat.reading import exported, read_to_end


@pytest.fixture
async def conversation_id(chat: ChatService, engine: ManualEngine) -> str:
    """Two candidates for one question; the second was picked and asked on."""
    started = await chat.send("first question", n=2)
    await engine.submitted.wait()
    for index, text in enumerate(("one", "two")):
        engine.streams[0].text(text, index)
        engine.streams[0].end(index)
    await read_to_end(chat, started.generation_id)
    await chat.select(started.candidates[1].message_id)
    engine.submitted.clear()
    again = await chat.send("more", conversation_id=started.conversation_id)
    await engine.submitted.wait()
    engine.streams[1].text("line\nline")
    engine.streams[1].end()
    await read_to_end(chat, again.generation_id)
    return started.conversation_id


async def test_update_is_checked_and_shown(chat: ChatService, conversation_id: str) -> None:
    changes: dict[str, Any] = {
        "title": "  a  new\ntitle ",
        "pinned": True,
        "system_prompt": "be kind",
        "sampling": {"top_p": 0.9, "seed": None},
    }
    item = await chat.conversations.update(conversation_id, changes)
    assert (item.title, item.pinned) == ("a new title", True)
    detail = (await chat.conversations.view(conversation_id)).conversation
    assert (detail.system_prompt, detail.sampling) == ("be kind", {"top_p": 0.9})
    await chat.conversations.update(conversation_id, {"system_prompt": None})
    assert (await chat.conversations.view(conversation_id)).conversation.system_prompt is None


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"title": ""}, "title"),
        ({"title": 5}, "title"),
        ({"title": "x" * 201}, "title"),
        ({"pinned": 1}, "pinned"),
        ({"system_prompt": ["x"]}, "system_prompt"),
        ({"system_prompt": "\udc00"}, "system_prompt"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature"),
        ({"sampling": {"use_beam_search": True}}, "sampling.use_beam_search"),
        ({"sampling": {"logprobs": True}}, "sampling.logprobs"),
        ({"sampling": {"n": 2, "temperatures": [0.1, 1]}}, "sampling.temperatures"),
        ({"sampling": None}, "sampling"),
        ({"title": "\0\x07\x1b"}, "title"),
        ({"system_prompt": "Be\0brief."}, "system_prompt"),
        ({"head_id": "x"}, "head_id"),
        ({"title": "fine", "messages": []}, "messages"),
        ({"title": "fine", "sampling": {"stop_token_ids": [1, 256]}}, "sampling.stop_token_ids[1]"),
        ({"sampling": {"logit_bias": {"256": 1}}}, "sampling.logit_bias.256"),
        ({"sampling": {"guided_regex": "("}}, "sampling.guided_regex"),
        ({"sampling": {"guided_regex": "a", "ignore_eos": True}}, "sampling.ignore_eos"),
        ({"sampling": {"n": 65}}, "sampling.n"),
    ],
)
async def test_a_bad_change_changes_nothing(
    chat: ChatService, conversation_id: str, changes: dict[str, Any], param: str
) -> None:
    before = await chat.conversations.tree(conversation_id)
    with pytest.raises(RequestError) as refused:
        await chat.conversations.update(conversation_id, changes)
    assert refused.value.param == param
    assert await chat.conversations.tree(conversation_id) == before


async def test_what_only_a_model_can_tell_waits_for_it(
    chat: ChatService, engine: ManualEngine, conversation_id: str
) -> None:
    sampling = {"stop_token_ids": [256], "top_k": 3}
    engine.status = EngineStatus("loading", "reading", 0.5)
    await chat.conversations.update(conversation_id, {"sampling": sampling})
    engine.status = EngineStatus("ready", "ready", 1.0)
    assert (await chat.conversations.tree(conversation_id)).conversation.sampling == sampling
    before = await chat.conversations.tree(conversation_id)
    with pytest.raises(RequestError, match="the conversation's stored sampling says so") as refused:
        await chat.send("hm", conversation_id=conversation_id)
    assert refused.value.param == "sampling.stop_token_ids[0]"
    own = {"stop_token_ids": [300]}
    with pytest.raises(RequestError, match=r"0 to 255$"):
        await chat.send("hm", conversation_id=conversation_id, sampling=own)
    assert await chat.conversations.tree(conversation_id) == before
    await chat.conversations.update(conversation_id, {"sampling": {}})
    await chat.send("hm", conversation_id=conversation_id)


async def test_hidden_conversations_come_back_whole(
    chat: ChatService, conversation_id: str
) -> None:
    before = await chat.conversations.tree(conversation_id)
    await chat.conversations.hide(conversation_id)
    assert (await chat.conversations.list()).items == ()
    for call in (chat.conversations.view, chat.conversations.tree, chat.conversations.hide):
        with pytest.raises(NotFoundError):
            await call(conversation_id)
    await chat.conversations.restore(conversation_id)
    assert await chat.conversations.tree(conversation_id) == before


async def test_purge_is_for_good(chat: ChatService, conversation_id: str) -> None:
    await chat.conversations.hide(conversation_id)
    await chat.conversations.purge(conversation_id)
    for call in (chat.conversations.restore, chat.conversations.purge):
        with pytest.raises(NotFoundError):
            await call(conversation_id)


async def test_a_conversation_whose_turn_is_being_prepared_cannot_be_purged(
    chat: ChatService, conversation_id: str
) -> None:
    with chat._hub.reserve(conversation_id), pytest.raises(ConversationBusyError):
        await chat.conversations.purge(conversation_id)
    await chat.conversations.purge(conversation_id)


async def test_an_export_can_be_imported_again(chat: ChatService, conversation_id: str) -> None:
    await chat.conversations.update(
        conversation_id, {"system_prompt": "hm", "sampling": {"top_k": 3}, "pinned": True}
    )
    document = await exported(chat, conversation_id)
    (copy_id,) = (await chat.conversations.import_again(document)).conversation_ids
    assert copy_id != conversation_id
    again = await exported(chat, copy_id)
    assert shape(again) == shape(document)
    original, copy = [await chat.conversations.view(i) for i in (conversation_id, copy_id)]
    assert [m.content for m in copy.messages] == [m.content for m in original.messages]
    assert await chat.conversations.tree(conversation_id)
    ids = {message["id"] for message in again["messages"]}
    assert ids.isdisjoint(message["id"] for message in document["messages"])


def shape(document: dict[str, Any]) -> Any:
    """A document with ids replaced by positions and without times."""
    numbers = {message["id"]: i for i, message in enumerate(document["messages"])}
    generations: dict[str | None, int] = {None: -1}
    messages = [
        {k: v for k, v in message.items() if k not in ("id", "created_at")}
        | {
            "parent_id": numbers.get(message["parent_id"]),
            "generation_id": generations.setdefault(message["generation_id"], len(generations)),
        }
        for message in document["messages"]
    ]
    conversation = document["conversation"] | {
        "head_id": numbers[document["conversation"]["head_id"]]
    }
    return {k: v for k, v in conversation.items() if not k.endswith("_at")}, messages


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (lambda d: [], None),
        (lambda d: d | {"format": "other"}, "format"),
        (lambda d: d | {"version": True}, "version"),
        (lambda d: d | {"conversation": None}, "conversation"),
        (lambda d: d | {"conversation": d["conversation"] | {"title": 1}}, "conversation.title"),
        (
            lambda d: d | {"conversation": d["conversation"] | {"head_id": "x"}},
            "conversation.head_id",
        ),
        (
            lambda d: d | {"conversation": d["conversation"] | {"sampling": {"top_p": 7}}},
            "conversation.sampling.top_p",
        ),
        (
            lambda d: d | {"conversation": d["conversation"] | {"sampling": {"temperatures": [1]}}},
            "conversation.sampling.temperatures",
        ),
        (
            lambda d: (
                d | {"conversation": d["conversation"] | {"sampling": {"use_beam_search": True}}}
            ),
            "conversation.sampling.use_beam_search",
        ),
        (lambda d: d | {"messages": {}}, "messages"),
        (lambda d: d | {"messages": [1]}, "messages[0]"),
        (lambda d: d | {"messages": d["messages"][1:]}, "messages[0].parent_id"),
        (lambda d: d | {"messages": [d["messages"][0]] * 2}, "messages[1].id"),
        (lambda d: d | {"messages": [d["messages"][0] | {"role": "root"}]}, "messages[0].role"),
        (lambda d: d | {"messages": [d["messages"][0] | {"seed": 2**64}]}, "messages[0].seed"),
        (
            lambda d: d | {"messages": [d["messages"][0] | {"content": "\ud800"}]},
            "messages[0].content",
        ),
        (
            lambda d: d | {"messages": [d["messages"][0] | {"parent_id": d["messages"][0]["id"]}]},
            "messages[0].parent_id",
        ),
    ],
)
async def test_a_broken_import_names_the_field_and_stores_nothing(
    chat: ChatService, conversation_id: str, change: Any, param: str | None
) -> None:
    document = await exported(chat, conversation_id)
    with pytest.raises(RequestError) as refused:
        await chat.conversations.import_document(change(document))
    assert refused.value.param == param
    assert len((await chat.conversations.list()).items) == 1


async def test_an_answer_exported_while_streaming_is_imported_as_interrupted(
    chat: ChatService, storage: Storage
) -> None:
    started = await chat.send("hi")
    document = await exported(chat, started.conversation_id)
    (copy_id,) = (await chat.conversations.import_again(document)).conversation_ids
    reply = (await chat.conversations.view(copy_id)).messages[1]
    assert reply.status == "interrupted"


async def test_markdown_is_the_path_to_the_head(chat: ChatService, conversation_id: str) -> None:
    await chat.conversations.update(conversation_id, {"system_prompt": "be\nkind"})
    assert await chat.conversations.export_markdown(conversation_id) == (
        "# first question\n\n> be\n> kind\n\n## User\n\nfirst question\n\n## Assistant\n\ntwo\n\n"
        "## User\n\nmore\n\n## Assistant\n\nline\nline\n"
    )


async def test_everything_can_be_written_as_json(chat: ChatService, conversation_id: str) -> None:
    view = to_wire(await chat.conversations.view(conversation_id))
    assert json.loads(json.dumps(view)) == view
    assert view["messages"][0]["created_at"].endswith("+00:00")
    assert set(view) == {"conversation", "messages", "candidates", "generation_id"}


async def test_a_wide_tree_is_told_in_proportion_to_its_messages(chat: ChatService) -> None:
    """Not in proportion to the square of a question's answers."""
    question = {"id": "q", "role": "user", "content": "?"}
    answers = [
        {"id": f"a{i}", "parent_id": "q", "role": "assistant", "content": "."} for i in range(300)
    ]
    conversation = {"title": "wide", "pinned": False, "head_id": "a299"}
    messages = [message | {"status": "done"} for message in [question, *answers]]
    head = {"format": "pageturn.conversation", "version": 1}
    document = head | {"conversation": conversation, "messages": messages}
    (conversation_id,) = (await chat.conversations.import_again(document)).conversation_ids
    tree = to_wire(await chat.conversations.tree(conversation_id))
    assert len(tree["messages"]) == 301
    assert max(len(json.dumps(message)) for message in tree["messages"]) < 1000
    shown = (await chat.conversations.view(conversation_id)).messages[-1]
    assert len(shown.sibling_ids) == 300


async def test_an_import_that_the_end_of_the_app_meets_stores_nothing(
    chat: ChatService, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.importing.ROWS_PER_STATEMENT", 1)
    has_begun = asyncio.Event()

    async def add(*arguments: Any) -> tuple[StoredImport, ...]:
        has_begun.set()
        return await add_new_imports(*arguments)

    monkeypatch.setattr("storage.conversations.add_new_imports", add)
    files = [chatgpt() for _ in range(200)]
    importing = asyncio.create_task(chat.conversations.import_document(files))
    await has_begun.wait()
    await chat.shutdown(0)
    with pytest.raises(ShuttingDownError):
        await importing
    await storage.database.checkpoint()  # which waits for a transaction that runs
    assert (await chat.conversations.list()).items == ()
