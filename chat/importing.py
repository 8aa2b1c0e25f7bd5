"""What a file of conversations holds: one or many, of our own export, ChatGPT's or Open WebUI's.

A file is read as a whole before anything is stored: a fault anywhere refuses it, with its place. Settings in it
that the model here can never run are left out.
"""

from collections.abc import Sequence
from dataclasses import replace

from chat.changes import runnable_part
from chat.fields import Fields
from chat.import_chatgpt import read_chatgpt
from chat.import_open_webui import read_open_webui
from chat.import_pageturn import FORMAT, VERSION, read_pageturn
from chat.ports import Engine
from engine.errors import RequestError
from storage.records import ImportedConversation

LIST_FORMAT = "pageturn.conversations"
MAX_CONVERSATIONS = 20_000
MAX_MESSAGES = 500_000


def read_conversations(document: object) -> tuple[ImportedConversation, ...]:
    """Every conversation of a parsed file. Raises RequestError with the field's path, as `[3].mapping.a.parent`."""
    items = _items(document)
    if not 1 <= len(items) <= MAX_CONVERSATIONS:
        message = f"the file has {len(items)} conversations; 1 to {MAX_CONVERSATIONS} are read"
        raise RequestError(message, param=None)
    conversations = tuple(map(_read, items))
    num_messages = sum(len(each.messages) for each in conversations)
    if num_messages > MAX_MESSAGES:
        message = f"the file has {num_messages} messages; at most {MAX_MESSAGES} are read"
        raise RequestError(message, param=None)
    return conversations


async def fit_to_model(
    engine: Engine, conversations: Sequence[ImportedConversation]
) -> tuple[list[ImportedConversation], dict[int, tuple[RequestError, ...]]]:
    """The same with what the model can run of their settings, and what is left out, by position."""
    fitting: list[ImportedConversation] = []
    faults: dict[int, tuple[RequestError, ...]] = {}
    for position, each in enumerate(conversations):
        sampling, faults_of_it = await runnable_part(engine, each.sampling)
        fitting.append(replace(each, sampling=sampling) if faults_of_it else each)
        if faults_of_it:
            faults[position] = faults_of_it
    return fitting, faults


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
    known = f"{FORMAT} (`format`), ChatGPT (`mapping`) or Open WebUI (`chat`)"
    message = f"{item.path or 'the document'} must be a conversation exported by {known}"
    raise RequestError(message, param=item.path or None)
