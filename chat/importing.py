"""What a file of conversations holds: one or many, of our own export, ChatGPT's or Open WebUI's.

A file is read as a whole before anything is stored: a fault anywhere refuses it, with its place. Settings in it
that the model here can never run are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from chat.changes import runnable_part
from chat.fields import Fields
from chat.import_chatgpt import read_chatgpt
from chat.import_open_webui import read_open_webui
from chat.import_pageturn import VERSION, read_pageturn
from chat.ports import Engine
from engine.errors import RequestError
from storage.records import WHEN_FULL, ImportedConversation

LIST_FORMAT = "pageturn.conversations"
MAX_CONVERSATIONS = 20_000
MAX_MESSAGES = 500_000


@dataclass(frozen=True, slots=True)
class ReadFile:
    """The conversations of a file by their place in it, without the empty ones."""

    conversations: Mapping[int, ImportedConversation]
    num_empty: int


def read_file(document: object) -> ReadFile:
    """Every conversation in which something is said or set. Raises as `read_conversations` does."""
    read = read_conversations(document)
    kept = {place: each for place, each in enumerate(read) if not _is_empty(each)}
    return ReadFile(kept, len(read) - len(kept))


def read_conversations(document: object) -> tuple[ImportedConversation, ...]:
    """Every conversation of a parsed file. Raises RequestError with the field's path, as `[3].mapping.a.parent`."""
    items = _items(document)
    if not items or document == {}:
        raise RequestError("the file has no conversations", param=None)
    if len(items) > MAX_CONVERSATIONS:
        message = f"the file has {len(items)} conversations; at most {MAX_CONVERSATIONS} are read"
        raise RequestError(message, param=None)
    conversations = tuple(map(_read, items))
    num_messages = sum(len(each.messages) for each in conversations)
    if num_messages > MAX_MESSAGES:
        message = f"the file has {num_messages} messages; at most {MAX_MESSAGES} are read"
        raise RequestError(message, param=None)
    return conversations


async def fit_to_model(
    engine: Engine, conversations: Mapping[int, ImportedConversation]
) -> tuple[dict[int, ImportedConversation], dict[int, tuple[RequestError, ...]]]:
    """The same with what the model can run of their settings, and what is left out, by position."""
    fitting: dict[int, ImportedConversation] = {}
    faults: dict[int, tuple[RequestError, ...]] = {}
    for position, each in conversations.items():
        sampling, faults_of_it = await runnable_part(engine, each.sampling)
        fitting[position] = replace(each, sampling=sampling) if faults_of_it else each
        if faults_of_it:
            faults[position] = faults_of_it
    return fitting, faults


def _is_empty(conversation: ImportedConversation) -> bool:
    """A chat that was opened and left; one of which something is set is more."""
    each = conversation
    is_set = each.system_prompt or each.sampling or each.pinned or each.when_full != WHEN_FULL[0]
    return not (each.messages or is_set)


def _items(document: object) -> list[Fields]:
    if isinstance(document, list):
        return [Fields(item, f"[{position}]") for position, item in enumerate(document)]
    root = Fields(document, "")
    if root.get("format") != LIST_FORMAT:
        return [root]
    root.choice("version", (VERSION,))
    return root.objects("conversations")


def _read(item: Fields) -> ImportedConversation:
    if item.has("format"):
        return read_pageturn(item)
    if item.has("mapping"):
        return read_chatgpt(item)
    if item.has("chat"):
        return read_open_webui(item)
    what = f"{item.path} is no conversation" if item.path else "this file is no export"
    message = f"{what} of Pageturn, ChatGPT or Open WebUI"
    raise RequestError(message, param=item.path or None)
