"""A conversation as a file: our JSON, which can be imported again, and Markdown, which is for people.

The JSON document: {"format": "pageturn.conversation", "version": 1, "conversation": {title, system_prompt, sampling,
pinned, head_id}, "messages": [{id, parent_id, role, content, ...}]}, parents before children. Imports get new ids.
"""

from collections.abc import Mapping
from typing import Any

from chat.events import ConversationTree, ConversationView
from chat.turns import check_sampling, check_text, check_title
from chat.wire import to_wire
from engine.errors import RequestError
from storage.records import ImportedConversation, ImportedMessage

FORMAT, VERSION = "pageturn.conversation", 1
_STATUSES = ("done", "stopped", "interrupted", "error", "generating")
_ROLE_NAMES = {"user": "User", "assistant": "Assistant"}


def export_document(tree: ConversationTree) -> dict[str, Any]:
    """The document of a whole conversation."""
    conversation = to_wire(tree.conversation)
    kept = ("title", "system_prompt", "sampling", "pinned", "head_id", "created_at", "updated_at")
    messages = [to_wire(message) for message in tree.messages]
    for message in messages:
        del message["sibling_ids"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "conversation": {name: conversation[name] for name in kept},
        "messages": messages,
    }


def export_markdown(view: ConversationView) -> str:
    """The path to the head, one heading per message."""
    parts = [f"# {view.conversation.title}"]
    if view.conversation.system_prompt:
        parts.append(f"> {view.conversation.system_prompt}".replace("\n", "\n> "))
    parts += [f"## {_ROLE_NAMES[message.role]}\n\n{message.content}" for message in view.messages]
    return "\n\n".join(parts) + "\n"


def read_document(document: object) -> ImportedConversation:
    """Check an exported document. Raises RequestError with the field's path."""
    root = _Fields(document, "")
    root.choice("format", (FORMAT,))
    root.choice("version", (VERSION,))
    conversation = _Fields(root.get("conversation"), "conversation")
    positions: dict[str, int] = {}
    messages = tuple(
        _read_message(_Fields(item, f"messages[{position}]"), position, positions)
        for position, item in enumerate(root.items("messages"))
    )
    sampling = conversation.mapping("sampling") or {}
    check_sampling(sampling, "conversation.sampling")
    return ImportedConversation(
        title=check_title(conversation.get("title"), "conversation.title"),
        system_prompt=conversation.optional_text("system_prompt"),
        sampling=sampling,
        pinned=bool(conversation.choice("pinned", (False, True))),
        head=conversation.reference("head_id", positions),
        messages=messages,
    )


def _read_message(fields: "_Fields", position: int, positions: dict[str, int]) -> ImportedMessage:
    """A message whose parent, if it has one, came before it. An answer that was streaming is `interrupted`."""
    parent = fields.reference("parent_id", positions)
    own_id = fields.text("id")
    if own_id in positions:
        raise fields.error("id", "must not come twice")
    positions[own_id] = position
    status = fields.choice("status", _STATUSES)
    return ImportedMessage(
        parent=parent,
        role=fields.choice("role", tuple(_ROLE_NAMES)),
        content=fields.text("content"),
        status="interrupted" if status == "generating" else status,
        finish_reason=fields.choice("finish_reason", (None, "stop", "length", "abort", "error")),
        generation_id=fields.optional_text("generation_id"),
        candidate_index=fields.integer("candidate_index", 2**31),
        seed=fields.integer("seed", 2**64),
        sampling=fields.mapping("sampling"),
        usage=fields.mapping("usage"),
        timings=fields.mapping("timings"),
        kv=fields.mapping("kv"),
    )


class _Fields:
    """Typed access to one JSON object; complaints carry the path. An absent field reads as null."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            raise RequestError(f"{path or 'the document'} must be an object", param=path or None)
        self._value = value
        self._prefix = f"{path}." if path else ""

    def error(self, name: str, allowed: str) -> RequestError:
        param = f"{self._prefix}{name}"
        return RequestError(f"{param} {allowed}", param=param)

    def get(self, name: str) -> Any:
        return self._value.get(name)

    def items(self, name: str) -> list[Any]:
        value = self.get(name)
        if not isinstance(value, list):
            raise self.error(name, "must be a list")
        return value

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise self.error(name, "must be a text")
        check_text(value, f"{self._prefix}{name}")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def integer(self, name: str, limit: int) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < limit:
            raise self.error(name, f"must be a whole number from 0 to {limit - 1}")
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, "must be an object")
        return value

    def choice(self, name: str, allowed: tuple[Any, ...]) -> Any:
        value = self.get(name)
        if not any(value == each and type(value) is type(each) for each in allowed):
            listed = ", ".join(repr(each) for each in allowed)
            raise self.error(name, f"must be one of {listed}")
        return value

    def reference(self, name: str, positions: Mapping[str, int]) -> int | None:
        """The position of the message that a field names; only earlier messages are known."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in positions:
            raise self.error(name, "must name a message that comes earlier")
        return positions[value]
