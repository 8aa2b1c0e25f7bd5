"""Export file names, and all conversations in one file."""

import io
import json
import zipfile

import pytest

from chat.portable import NAME_LENGTH, file_name
from chat.service import ChatService
from tests.chat.exports import chatgpt, open_webui
from tests.e2e.hostile import LINES, one_each


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Bread and butter", "chat-bread-and-butter"),
        ("猫の話 (2)", "chat-猫の話-2"),
        ("../../etc/passwd", "chat-etc-passwd"),
        ("CON", "chat-con"),
        ("...", "chat"),
        ("\u202egnp.exe", "chat-gnp-exe"),
        ("W" * 100, "chat-" + "w" * NAME_LENGTH),
    ],
)
def test_a_title_as_a_file_name(title: str, name: str) -> None:
    assert file_name(title) == name


@one_each(LINES)
def test_any_title_is_a_name_in_this_folder_and_needs_no_quoting(text: str) -> None:
    name = file_name(text)
    assert name == "chat" or name.startswith("chat-")
    assert all(character.isalnum() or character == "-" for character in name)
    assert len(name) <= NAME_LENGTH + 5


async def test_all_as_json_can_be_imported_again(chat: ChatService) -> None:
    await chat.conversations.import_document([chatgpt(), open_webui()])
    exported = b"".join([piece async for piece in await chat.conversations.export_all_json()])
    document = json.loads(exported)
    assert [d["conversation"]["title"] for d in document["conversations"]] == ["Rivers", "Bread"]
    copies = (await chat.conversations.import_again(document)).conversation_ids
    assert len(copies) == 2
    shown = await chat.conversations.view(copies[0])
    assert [m.content for m in shown.messages][-1] == "The Elbe."


async def test_all_as_markdown_is_an_archive_with_a_file_each(chat: ChatService) -> None:
    await chat.conversations.import_document([chatgpt(), open_webui(), open_webui()])
    pieces = [piece async for piece in await chat.conversations.export_all_markdown()]
    assert len(pieces) == 4
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert sorted(names) == ["chat-bread.md", "chat-rivers.md", "chat-rivers_2.md"]
        text = archive.read("chat-bread.md").decode()
    assert text.startswith("# Bread\n\n> Be brief.\n\n## User\n\nHow is bread made?")
