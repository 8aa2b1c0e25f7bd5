"""Files of ChatGPT and Open WebUI, whole and broken; our own are in test_conversations.py."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from chat import importing
from chat.importing import read_conversations, read_file
from chat.service import ChatService
from engine.errors import EngineNotReadyError, RequestError
from engine.sampling_params import SamplingParams
from storage.records import ImportedConversation
from tests.chat.exports import chatgpt, open_webui
from tests.chat.fakes import ManualEngine
from tests.e2e.hostile import LINES, TEXTS


def shape(conversation: ImportedConversation) -> list[tuple[int | None, str, str]]:
    return [(m.parent, m.role, m.content) for m in conversation.messages]


def test_chatgpt_keeps_its_branches_without_tools() -> None:
    (bread,) = read_conversations([chatgpt()])
    assert shape(bread) == [
        (None, "user", "How is bread made?"),
        (0, "assistant", "With yeast.\n\nand time."),
        (0, "assistant", "With flour."),
    ]
    assert (bread.title, bread.system_prompt, bread.head) == ("Bread", "Be brief.", 1)
    assert bread.created_at == datetime.fromtimestamp(1_700_000_000.5, UTC)
    assert bread.updated_at == datetime.fromtimestamp(1_700_000_100, UTC)


def test_open_webui_keeps_its_branches_and_what_was_on_show() -> None:
    (rivers,) = read_conversations([open_webui()])
    assert shape(rivers) == [
        (None, "user", "Name a river."),
        (0, "assistant", "The Rhine."),
        (1, "user", "Another."),
        (2, "assistant", "The Elbe."),
        (0, "assistant", "The Danube."),
    ]
    assert (rivers.title, rivers.system_prompt, rivers.head) == ("Rivers", "Be kind.", 3)


def test_other_contents_of_chatgpt() -> None:
    document = chatgpt()
    mapping = document["mapping"]
    mapping["q"]["message"]["content"] = {
        "content_type": "multimodal_text",
        "parts": [{"content_type": "image_asset_pointer"}, "What is this?"],
    }
    mapping["a1"]["message"]["content"] = {"content_type": "code", "text": "print(1)"}
    mapping["a2"]["message"]["content"] = {"content_type": "thoughts", "thoughts": []}
    mapping["sys"]["message"]["metadata"] = {"is_visually_hidden_from_conversation": True}
    (read,) = read_conversations([document])
    assert shape(read) == [
        (None, "user", "[attachment]\n\nWhat is this?"),
        (0, "assistant", "```\nprint(1)\n```"),
    ]
    assert (read.system_prompt, read.head) == (None, 0)


def test_titles_are_made_to_fit() -> None:
    for title, expected in {
        None: "How is bread made?",
        " ": "How is bread made?",
        "a\nb": "a b",
        "a\x07\x1b[1mb\x9d": "a [1mb",
        "x" * 300: "x" * 200,
    }.items():
        (read,) = read_conversations(chatgpt() | {"title": title})
        assert read.title == expected
    (empty,) = read_conversations({"title": "", "mapping": {}})
    assert (empty.title, empty.messages) == ("Imported chat", ())


def nothing_said() -> list[dict[str, Any]]:
    """Chats of both programs that were opened and left."""
    root = {"id": "root", "message": None, "parent": None, "children": []}
    opened = {"title": "New chat", "mapping": {"root": root}, "current_node": "root"}
    left = open_webui()
    left["chat"]["history"] = {"messages": {}, "currentId": None}
    left["chat"]["params"] = {}
    return [opened, left]


def test_where_nothing_is_said_or_set_there_is_nothing_to_keep() -> None:
    read = read_file([*nothing_said(), chatgpt()])
    assert (list(read.conversations), read.num_empty) == ([2], 2)
    (_, prompted) = nothing_said()
    prompted["chat"]["params"] = {"system": "Be kind."}
    kept = [prompted, with_sampling({"seed": 1}), with_sampling({})]
    kept[2]["conversation"]["pinned"] = True
    read = read_file([*kept, with_sampling({})])
    assert (list(read.conversations), read.num_empty) == ([0, 1, 2], 1)


async def test_empty_ones_are_left_out_and_counted_and_places_stay_those_of_the_file(
    chat: ChatService,
) -> None:
    known = open_webui()
    await chat.conversations.import_document(known)
    imported = await chat.conversations.import_document([*nothing_said(), known, chatgpt()])
    assert [each.position for each in imported.already_here] == [2]
    assert (len(imported.conversation_ids), imported.num_empty) == (1, 2)
    again = await chat.conversations.import_again([*nothing_said(), known])
    assert (len(again.conversation_ids), again.num_empty) == (1, 2)
    only = await chat.conversations.import_document(nothing_said())
    assert (only.conversation_ids, only.already_here, only.num_empty) == ((), (), 2)


@pytest.mark.parametrize(
    "document",
    [[], {}, {"format": "pageturn.conversations", "version": 1, "conversations": []}],
)
def test_a_file_without_conversations_is_refused_in_these_words(document: object) -> None:
    with pytest.raises(RequestError, match=r"^the file has no conversations$"):
        read_conversations(document)


def test_a_very_deep_tree_is_read() -> None:
    document = open_webui()
    messages = {
        f"{i}": {
            "id": f"{i}",
            "parentId": f"{i - 1}" if i else None,
            "childrenIds": [f"{i + 1}"] if i < 4999 else [],
            "role": "user",
            "content": "x",
        }
        for i in range(5000)
    }
    document["chat"]["history"] = {"messages": messages, "currentId": "4999"}
    (read,) = read_conversations([document])
    assert (len(read.messages), read.head) == (5000, 4999)


def with_sampling(sampling: dict[str, Any]) -> dict[str, Any]:
    """A file of ours without messages."""
    about = {"title": "t", "pinned": False, "head_id": None, "sampling": sampling}
    head = {"format": "pageturn.conversation", "version": 1}
    return head | {"conversation": about, "messages": []}


@pytest.mark.parametrize(
    ("sampling", "kept", "params"),
    [
        ({"guided_regex": "(", "top_k": 3}, {"top_k": 3}, ["sampling.guided_regex"]),
        ({"top_k": 3}, {"top_k": 3}, []),
        ({"logit_bias": {"999999": 1}, "seed": 1}, {"seed": 1}, ["sampling.logit_bias.999999"]),
        (
            {"guided_regex": "a", "ignore_eos": True, "stop_token_ids": [999999]},
            {"guided_regex": "a"},
            ["sampling.ignore_eos", "sampling.stop_token_ids[0]"],
        ),
    ],
)
async def test_settings_that_the_model_cannot_run_are_left_out_and_told(
    chat: ChatService, sampling: dict[str, Any], kept: dict[str, Any], params: list[str]
) -> None:
    imported = await chat.conversations.import_document(with_sampling(sampling))
    (conversation_id,) = imported.conversation_ids
    assert (await chat.conversations.view(conversation_id)).conversation.sampling == kept
    assert [each.param for each in imported.settings_left_out] == params
    assert {each.conversation_id for each in imported.settings_left_out} <= {conversation_id}


async def test_without_a_model_settings_are_kept_for_the_turn_to_refuse(
    chat: ChatService, engine: ManualEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_ready(_: SamplingParams) -> None:
        raise EngineNotReadyError("loading")

    monkeypatch.setattr(engine, "prepare", not_ready)
    imported = await chat.conversations.import_document(with_sampling({"guided_regex": "("}))
    view = await chat.conversations.view(imported.conversation_ids[0])
    assert view.conversation.sampling == {"guided_regex": "("}


Break = Callable[[dict[str, Any]], object]


def _set(*path: str, value: object) -> Break:
    def change(document: dict[str, Any]) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = value

    return change


def _drop(*path: str) -> Break:
    def change(document: dict[str, Any]) -> None:
        for name in path[:-1]:
            document = document[name]
        del document[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (_set("mapping", value=[]), "mapping"),
        (_set("title", value=5), "title"),
        (_set("title", value="\ud800"), "title"),
        (_set("create_time", value="yesterday"), "create_time"),
        (_set("create_time", value=1e300), "create_time"),
        (_set("update_time", value=True), "update_time"),
        (_set("current_node", value="nowhere"), "current_node"),
        (_set("current_node", value={}), "current_node"),
        (_set("mapping", "q", value=None), "mapping.q"),
        (_drop("mapping", "a1"), "mapping.q.children[1]"),
        (_set("mapping", "a1", "parent", value="sys"), "mapping.a1.parent"),
        (_set("mapping", "a1", "parent", value=None), "mapping.a1.parent"),
        (_set("mapping", "q", "children", value=["call"]), "mapping.a1.parent"),
        (_set("mapping", "q", "children", value=["a1", "a1"]), "mapping.q.children[1]"),
        (_set("mapping", "q", "children", value=[{}]), "mapping.q.children[0]"),
        (_set("mapping", "q", "children", value="a1"), "mapping.q.children"),
        (_set("mapping", "a2", "children", value=["q"]), "mapping.a2.children[0]"),
        (_set("mapping", "root", "parent", value="a2"), "mapping.root.parent"),
        (_set("mapping", "q", "message", value="hi"), "mapping.q.message"),
        (_set("mapping", "q", "message", "author", value=None), "mapping.q.message.author"),
        (
            _set("mapping", "q", "message", "author", "role", value="root"),
            "mapping.q.message.author.role",
        ),
        (_set("mapping", "q", "message", "content", value=[]), "mapping.q.message.content"),
        (
            _drop("mapping", "q", "message", "content", "content_type"),
            "mapping.q.message.content.content_type",
        ),
        (
            _set("mapping", "q", "message", "content", "parts", value=None),
            "mapping.q.message.content.parts",
        ),
        (
            _set("mapping", "q", "message", "content", "parts", value=["\udfff"]),
            "mapping.q.message.content.parts",
        ),
        (
            _set("mapping", "sys", "message", "content", "parts", value=["x" * 100_001]),
            "mapping.sys",
        ),
    ],
)
def test_a_broken_chatgpt_file_names_the_place(change: Break, param: str) -> None:
    document = chatgpt()
    change(document)
    with pytest.raises(RequestError) as refused:
        read_conversations([chatgpt(), document])
    assert refused.value.param == f"[1].{param}"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (_set("chat", value=None), "chat"),
        (_drop("chat", "history"), "chat.history"),
        (_drop("chat", "history", "messages"), "chat.history.messages"),
        (_set("chat", "history", "currentId", value="z"), "chat.history.currentId"),
        (_set("chat", "history", "messages", "a", "role", value=1), "chat.history.messages.a.role"),
        (
            _set("chat", "history", "messages", "a", "content", value=[]),
            "chat.history.messages.a.content",
        ),
        (
            _set("chat", "history", "messages", "c", "parentId", value="a"),
            "chat.history.messages.c.parentId",
        ),
        (
            _drop("chat", "history", "messages", "c", "childrenIds"),
            "chat.history.messages.c.childrenIds",
        ),
        (_set("chat", "params", "system", value="x" * 100_001), "chat.params.system"),
        (_set("updated_at", value=-1), "updated_at"),
    ],
)
def test_a_broken_open_webui_file_names_the_place(change: Break, param: str) -> None:
    document = open_webui()
    change(document)
    with pytest.raises(RequestError) as refused:
        read_conversations([document])
    assert refused.value.param == f"[0].{param}"


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ([], None),
        ("text", None),
        ([[]], "[0]"),
        ([{"other": 1}], "[0]"),
        ({}, None),
        ({"format": "pageturn.conversations", "version": 2}, "version"),
        (
            {"format": "pageturn.conversations", "version": 1, "conversations": [{"format": 3}]},
            "conversations[0].format",
        ),
    ],
)
def test_what_is_no_export_is_refused(document: object, param: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        read_conversations(document)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"a": 1}, "this file is no export of Pageturn, ChatGPT or Open WebUI"),
        ([{"a": 1}], "[0] is no conversation of Pageturn, ChatGPT or Open WebUI"),
    ],
)
def test_what_is_nothing_we_know_is_refused_in_these_words(document: object, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_conversations(document)
    assert refused.value.message == words


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "MAX_CONVERSATIONS", 2)
    with pytest.raises(RequestError, match="has 3 conversations; at most 2"):
        read_conversations([chatgpt()] * 3)
    monkeypatch.setattr(importing, "MAX_MESSAGES", 5)
    with pytest.raises(RequestError, match="has 6 messages; at most 5"):
        read_conversations([chatgpt()] * 2)


async def test_hostile_texts_and_titles_go_in_and_come_out_as_they_are(chat: ChatService) -> None:
    documents = []
    for number, text in enumerate(TEXTS):
        document = open_webui() if number % 2 else chatgpt()
        document["title"] = LINES[number % len(LINES)]
        if number % 2:
            document["chat"]["history"]["messages"]["a"]["content"] = text
        else:
            document["mapping"]["a1"]["message"]["content"]["parts"] = [text]
        documents.append(document)
    ids = (await chat.conversations.import_document(documents)).conversation_ids
    for text, conversation_id in zip(TEXTS, ids, strict=True):
        tree = await chat.conversations.tree(conversation_id)
        assert text in [message.content for message in tree.messages]
    exported = b"".join([piece async for piece in await chat.conversations.export_all_json()])
    again = await chat.conversations.import_again(json.loads(exported))
    assert len(again.conversation_ids) == len(TEXTS)


async def test_nothing_is_stored_of_a_file_with_one_fault(chat: ChatService) -> None:
    documents = [chatgpt(), open_webui(), chatgpt() | {"mapping": 5}]
    with pytest.raises(RequestError):
        await chat.conversations.import_document(documents)
    assert (await chat.conversations.list()).items == ()
