"""A conversation as a file: our JSON, which can be imported again, and Markdown, which is for people.

The JSON document: {"format": "pageturn.conversation", "version": 1, "conversation": {title, system_prompt, sampling,
pinned, head_id, created_at, updated_at}, "messages": [{id, parent_id, role, content, ...}]}, parents before children.
Several are {"format": "pageturn.conversations", "version": 1, "conversations": [...]}.
"""

import asyncio
import re
import unicodedata
from collections.abc import AsyncIterable, AsyncIterator, Iterator

from chat.events import ConversationTree, ConversationView
from chat.import_pageturn import FORMAT, VERSION
from chat.importing import LIST_FORMAT
from chat.json_parts import Part, Written, list_parts, parts_of, portions
from chat.wire import to_wire

NAME_LENGTH = 60
_ROLE_NAMES = {"user": "User", "assistant": "Assistant"}
_KEPT = (
    "title",
    "system_prompt",
    "when_full",
    "sampling",
    "pinned",
    "head_id",
    "created_at",
    "updated_at",
)


async def export_document(tree: ConversationTree) -> AsyncIterator[bytes]:
    """The document of a whole conversation, in pieces."""
    for piece in await asyncio.to_thread(lambda: list(portions(_document_parts(tree)))):
        yield piece


async def export_list(trees: AsyncIterable[ConversationTree]) -> AsyncIterator[bytes]:
    """The document of several conversations, in pieces."""
    yield b'{"format":"%b","version":%d,"conversations":[' % (LIST_FORMAT.encode(), VERSION)
    separator = b""
    async for tree in trees:
        yield separator
        async for piece in export_document(tree):
            yield piece
        separator = b",\n"
    yield b"]}\n"


def _document_parts(tree: ConversationTree) -> Iterator[Part]:
    conversation = to_wire(tree.conversation)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "conversation": {name: conversation[name] for name in _KEPT},
        "messages": Written(list_parts(map(to_wire, tree.messages))),
    }
    return parts_of(document)


def export_markdown(view: ConversationView) -> str:
    """The path to the head, one heading per message."""
    parts = [f"# {view.conversation.title}"]
    if view.conversation.system_prompt:
        parts.append(f"> {view.conversation.system_prompt}".replace("\n", "\n> "))
    parts += [f"## {_ROLE_NAMES[message.role]}\n\n{message.content}" for message in view.messages]
    return "\n\n".join(parts) + "\n"


def file_name(title: str) -> str:
    """A title as a file name without its ending: letters and digits of any script, hyphens for everything else.

    So it names no folder, is no option, no hidden file and no device, and needs no quoting.
    """
    plain = unicodedata.normalize("NFC", title)
    words = re.findall(r"[^\W_]+", plain)
    name = "-".join(words)[:NAME_LENGTH].strip("-").lower()
    return f"chat-{name}" if name else "chat"
