"""Conversations as things to keep: listed, shown, renamed, deleted, restored, exported, imported."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from chat.bulletin import Bulletin
from chat.errors import NotFoundError
from chat.events import (
    ConversationDetail,
    ConversationItem,
    ConversationTree,
    ConversationView,
    Message,
)
from chat.hub import GenerationHub
from chat.portable import export_document, export_markdown, read_document
from chat.tasks import Tasks
from chat.turns import check_sampling, check_text, check_title
from engine.errors import RequestError
from storage.conversations import ConversationStore
from storage.errors import MissingRowError
from storage.records import ConversationRecord, MessageRecord
from storage.tree import MessageTree

MAX_SYSTEM_PROMPT_LENGTH = 100_000


@contextmanager
def found(param: str) -> Iterator[None]:
    """Turn a missing row into NotFoundError on the field that named it."""
    try:
        yield
    except MissingRowError as error:
        raise NotFoundError(str(error), param=param) from error


class Conversations:
    """`ChatService.conversations`. Every change is told to all windows that watch."""

    def __init__(
        self, store: ConversationStore, hub: GenerationHub, bulletin: Bulletin, tasks: Tasks
    ) -> None:
        self._store = store
        self._hub = hub
        self._bulletin = bulletin
        self._tasks = tasks

    async def list(self, query: str = "") -> tuple[ConversationItem, ...]:
        """Those whose title or text contains `query`, most recently used first."""
        return tuple(self._item(record) for record in await self._store.find(query))

    async def item(self, conversation_id: str) -> ConversationItem:
        """One row of the list."""
        with found("conversation_id"):
            return self._item(await self._store.get(conversation_id))

    async def tree(self, conversation_id: str) -> ConversationTree:
        """A conversation with every message."""
        with found("conversation_id"):
            record, tree, messages = await self._store.messages(conversation_id)
        return ConversationTree(
            self._detail(record), tuple(_message(message, tree) for message in messages)
        )

    async def view(self, conversation_id: str) -> ConversationView:
        """The path to the head, and the open candidates."""
        with found("conversation_id"):
            record, tree, messages = await self._store.view(conversation_id)
        open_id = record.open_generation_id
        candidates = [] if open_id is None else tree.answers(open_id)
        return ConversationView(
            self._detail(record),
            tuple(_message(messages[i], tree) for i in tree.path(record.head_id)),
            tuple(_message(messages[i], tree) for i in candidates),
            self._hub.running_in(conversation_id),
        )

    async def update(self, conversation_id: str, changes: Mapping[str, Any]) -> ConversationItem:
        """Change any of title, pinned, system_prompt (None: the model's own), sampling. Raises RequestError."""
        await self._tasks.finish(self._update(conversation_id, _checked(changes)))
        return await self.item(conversation_id)

    async def hide(self, conversation_id: str) -> None:
        """Delete so that it can be restored; what runs in it is stopped first."""
        await self._tasks.finish(self._hide(conversation_id))

    async def restore(self, conversation_id: str) -> ConversationItem:
        """Undo `hide`."""
        await self._tasks.finish(self._restore(conversation_id))
        return await self.item(conversation_id)

    async def purge(self, conversation_id: str) -> None:
        """Delete for good, hidden or not; what runs in it is stopped first."""
        await self._tasks.finish(self._purge(conversation_id))

    async def export_json(self, conversation_id: str) -> dict[str, Any]:
        """The whole tree as the document that `import_json` reads."""
        return export_document(await self.tree(conversation_id))

    async def export_markdown(self, conversation_id: str) -> str:
        """The path to the head as a text to read."""
        return export_markdown(await self.view(conversation_id))

    async def import_json(self, document: object) -> ConversationItem:
        """Make a new conversation from an exported document. Raises RequestError with the field's path."""
        imported = read_document(document)
        conversation_id = await self._tasks.finish(self._store.add_import(imported))
        self._bulletin.mark(conversation_id)
        return await self.item(conversation_id)

    async def _update(self, conversation_id: str, changes: Mapping[str, Any]) -> None:
        with found("conversation_id"):
            await self._store.update(conversation_id, changes)
        self._bulletin.mark(conversation_id)

    async def _hide(self, conversation_id: str) -> None:
        await self._hub.end(conversation_id)
        with found("conversation_id"), self._hub.reserve(conversation_id):
            await self._store.hide(conversation_id)
        self._bulletin.mark(conversation_id)

    async def _restore(self, conversation_id: str) -> None:
        with found("conversation_id"):
            await self._store.restore(conversation_id)
        self._bulletin.mark(conversation_id)

    async def _purge(self, conversation_id: str) -> None:
        await self._hub.end(conversation_id)
        with found("conversation_id"), self._hub.reserve(conversation_id):
            await self._store.purge(conversation_id)
        self._bulletin.mark(conversation_id)

    def _item(self, record: ConversationRecord) -> ConversationItem:
        return ConversationItem(
            record.id,
            record.title,
            record.pinned,
            record.created_at,
            record.updated_at,
            self._hub.running_in(record.id) is not None,
        )

    def _detail(self, record: ConversationRecord) -> ConversationDetail:
        item = self._item(record)
        return ConversationDetail(
            item.id,
            item.title,
            item.pinned,
            item.created_at,
            item.updated_at,
            item.running,
            record.system_prompt,
            record.sampling,
            record.head_id,
            record.open_generation_id,
        )


def _message(record: MessageRecord, tree: MessageTree) -> Message:
    return Message(
        id=record.id,
        parent_id=record.parent_id,
        role=record.role,
        content=record.content,
        status=record.status,
        finish_reason=record.finish_reason,
        generation_id=record.generation_id,
        candidate_index=record.candidate_index,
        seed=record.seed,
        sampling=record.sampling,
        usage=record.usage,
        timings=record.timings,
        kv=record.kv,
        created_at=record.created_at,
        sibling_ids=tree.siblings(record.id),
    )


def _checked(changes: Mapping[str, Any]) -> dict[str, Any]:
    for name in changes:
        if name not in _CHECKS:
            allowed = ", ".join(_CHECKS)
            message = f"{name} cannot be changed; {allowed} can"
            raise RequestError(message, param=name, code="unknown_field")
    return {name: _CHECKS[name](value) for name, value in changes.items()}


def _title(value: object) -> str:
    return check_title(value, "title")


def _pinned(value: object) -> bool:
    if not isinstance(value, bool):
        raise RequestError("pinned must be true or false", param="pinned")
    return value


def _system_prompt(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_SYSTEM_PROMPT_LENGTH:
        message = f"system_prompt must be a text of at most {MAX_SYSTEM_PROMPT_LENGTH} characters"
        raise RequestError(message, param="system_prompt")
    check_text(value, "system_prompt")
    return value or None


def _sampling(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RequestError("sampling must be an object", param="sampling")
    check_sampling(value, "sampling")
    return {key: item for key, item in value.items() if item is not None}


_CHECKS = {
    "title": _title,
    "pinned": _pinned,
    "system_prompt": _system_prompt,
    "sampling": _sampling,
}
