"""Conversations as things to keep: listed, shown, renamed, deleted, restored, exported, imported."""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from itertools import starmap
from typing import Any, TypeVar

from chat.archive import export_archive
from chat.bulletin import Bulletin
from chat.changes import check_runnable, checked_changes
from chat.errors import NotFoundError
from chat.events import (
    AlreadyHere,
    BranchChange,
    ConversationDetail,
    ConversationItem,
    ConversationList,
    ConversationTree,
    ConversationView,
    FoundConversation,
    FoundList,
    Imported,
    LeftOut,
    Message,
    Outline,
    OutlineNode,
    ShownMessage,
)
from chat.hub import GenerationHub
from chat.importing import ReadFile, fit_to_model, read_file
from chat.owners import RequestOwners
from chat.portable import export_document, export_list, export_markdown
from chat.ports import Engine
from chat.snippets import snippet
from chat.tasks import Tasks, in_portions
from chat.texts import check_pairs, one_line
from chat.turns import copy_titles
from engine.errors import RequestError
from storage.conversations import ConversationStore
from storage.errors import MissingRowError
from storage.records import (
    ChangedBranch,
    ConversationRecord,
    Hit,
    MessageRecord,
    OutlineRow,
    StoredImport,
)
from storage.search import words_of
from storage.tree import MessageTree

Loaded = TypeVar("Loaded")
Faults = Mapping[int, Sequence[RequestError]]
"""What the model can never run, by the place of its conversation in a file."""

PAGE_SIZE = 100
MAX_PAGE_SIZE = 500
MAX_QUERY_LENGTH = 500
OUTLINE_LENGTH = 160


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
        self,
        engine: Engine,
        store: ConversationStore,
        hub: GenerationHub,
        bulletin: Bulletin,
        tasks: Tasks,
        owners: RequestOwners,
    ) -> None:
        self._engine = engine
        self._store = store
        self._hub = hub
        self._bulletin = bulletin
        self._tasks = tasks
        self._owners = owners

    async def list(self, after: str | None = None, limit: int = PAGE_SIZE) -> ConversationList:
        """At most `limit` of them, pinned ones first, then the most recently used; `after` is the `next` of the page before."""
        with _places(limit):
            page = await self._store.page(after, limit)
        return ConversationList(tuple(map(self._item, page.records)), page.next)

    async def find(self, query: str, after: str | None = None, limit: int = PAGE_SIZE) -> FoundList:
        """Those whose title or one of whose messages has all words of `query`, in pages as `list` gives them; none without words."""
        if len(query) > MAX_QUERY_LENGTH:
            message = f"query has {len(query)} characters; at most {MAX_QUERY_LENGTH} are allowed"
            raise RequestError(message, param="query")
        check_pairs(query, "query")
        words = words_of(query)
        if not words:
            return FoundList((), None)
        with _places(limit):
            page = await self._store.find(words, after, limit)
        snippets = await asyncio.to_thread(lambda: [snippet(hit.text, words) for hit in page.hits])
        pairs = zip(page.hits, snippets, strict=True)
        return FoundList(tuple(self._found(hit, pieces) for hit, pieces in pairs), page.next)

    async def item(self, conversation_id: str) -> ConversationItem:
        """One row of the list."""
        with found("conversation_id"):
            return self._item(await self._store.get(conversation_id))

    async def tree(self, conversation_id: str) -> ConversationTree:
        """A conversation with every message."""
        with found("conversation_id"):
            record, _, messages = await self._store.messages(conversation_id)
        return ConversationTree(
            self._detail(record), await asyncio.to_thread(_whole_messages, messages)
        )

    async def outline(self, conversation_id: str) -> Outline:
        """The tree with the beginnings of its messages."""
        with found("conversation_id"):
            record, rows = await self._store.outline(conversation_id, OUTLINE_LENGTH)
        return Outline(conversation_id, record.head_id, tuple(map(_outline_node, rows)))

    async def view(self, conversation_id: str) -> ConversationView:
        """The path to the head, and the open candidates."""
        with found("conversation_id"):
            record, tree, messages = await self._store.view(conversation_id)
        path, candidates = await asyncio.to_thread(_shown_messages, record, tree, messages)
        return ConversationView(
            self._detail(record), path, candidates, self._hub.running_in(conversation_id)
        )

    async def update(self, conversation_id: str, changes: Mapping[str, Any]) -> ConversationItem:
        """Change any of title, pinned, system_prompt (None: the model's own), when_full, sampling. Raises RequestError."""
        checked = checked_changes(changes)
        await check_runnable(self._engine, checked.get("sampling", {}))
        change = partial(self._store.update, conversation_id, checked)
        await self._tasks.finish(self._change(conversation_id, change))
        item = await self.item(conversation_id)
        self._owners.rename(conversation_id, item.title)
        return item

    async def hide(self, conversation_id: str) -> None:
        """Delete so that it can be restored; what runs in it is stopped first."""
        await self._tasks.finish(self._remove(conversation_id, self._store.hide))

    async def restore(self, conversation_id: str) -> ConversationItem:
        """Undo `hide`."""
        restore = partial(self._store.restore, conversation_id)
        await self._tasks.finish(self._change(conversation_id, restore))
        return await self.item(conversation_id)

    async def purge(self, conversation_id: str) -> None:
        """Delete for good, hidden or not; what runs in it is stopped first."""
        await self._tasks.finish(self._remove(conversation_id, self._store.purge))

    async def duplicate(self, conversation_id: str) -> ConversationItem:
        """A copy under a title that no other conversation has; what is deleted in the original is not in it."""
        copy_id = await self._tasks.finish(self._duplicate(conversation_id))
        return await self.item(copy_id)

    async def hide_branch(self, message_id: str) -> BranchChange:
        """Delete a message with all that follows from it, so that it can be restored. Raises ConversationBusyError."""
        return await self._tasks.finish(self._hide_branch(message_id))

    async def restore_branch(self, message_id: str) -> BranchChange:
        """Undo `hide_branch` of this message. What is on show stays."""
        return await self._tasks.finish(self._restore_branch(message_id))

    async def export_json(self, conversation_id: str) -> AsyncIterator[bytes]:
        """The whole tree as a document that `import_document` reads, in pieces."""
        return export_document(await self.tree(conversation_id))

    async def export_markdown(self, conversation_id: str) -> str:
        """The path to the head as a text to read."""
        return await asyncio.to_thread(export_markdown, await self.view(conversation_id))

    async def export_all_json(self) -> AsyncIterator[bytes]:
        """All conversations as one document that `import_document` reads, in pieces."""
        return export_list(_each(await self._all_ids(), self.tree))

    async def export_all_markdown(self) -> AsyncIterator[bytes]:
        """All conversations as a ZIP archive of texts to read, in pieces."""
        return export_archive(_each(await self._all_ids(), self.view))

    async def import_document(self, document: object) -> Imported:
        """Store what a parsed file holds and is not here yet, or nothing. Raises RequestError with the field's path."""
        read, faults = await self._read(document)
        store = partial(self._store.add_new_imports, tuple(read.conversations.values()))
        stored = await self._tasks.finish(in_portions(store))
        return self._imported(read, stored, faults)

    async def import_again(self, document: object) -> Imported:
        """Store everything that a parsed file holds, whether it is here already or not; raises as `import_document` does."""
        read, faults = await self._read(document)
        store = partial(self._store.add_imports, tuple(read.conversations.values()))
        ids = await self._tasks.finish(in_portions(store))
        return self._imported(read, [StoredImport(each, True) for each in ids], faults)

    async def _read(self, document: object) -> tuple[ReadFile, Faults]:
        read = await asyncio.to_thread(read_file, document)
        fitting, faults = await fit_to_model(self._engine, read.conversations)
        return replace(read, conversations=fitting), faults

    def _imported(self, read: ReadFile, stored: Sequence[StoredImport], faults: Faults) -> Imported:
        imported = _report(read, stored, faults)
        for conversation_id in imported.conversation_ids:
            self._bulletin.mark(conversation_id)
        return imported

    async def _all_ids(self) -> Sequence[str]:
        """Of all conversations, in the list's order."""
        page = await self.list(None, MAX_PAGE_SIZE)
        ids = [item.id for item in page.items]
        while page.next is not None:
            page = await self.list(page.next, MAX_PAGE_SIZE)
            ids += [item.id for item in page.items]
        return ids

    async def _change(self, conversation_id: str, change: Callable[[], Awaitable[None]]) -> None:
        with found("conversation_id"):
            await change()
        self._bulletin.mark(conversation_id)

    async def _remove(self, conversation_id: str, remove: Callable[[str], Awaitable[None]]) -> None:
        """When what runs in it has been stopped."""
        await self._hub.end(conversation_id)
        with found("conversation_id"), self._hub.reserve(conversation_id):
            await remove(conversation_id)
        self._bulletin.mark(conversation_id)

    async def _duplicate(self, conversation_id: str) -> str:
        with found("conversation_id"):
            copy_id = await self._store.duplicate(conversation_id, copy_titles)
        self._bulletin.mark(copy_id)
        return copy_id

    async def _hide_branch(self, message_id: str) -> BranchChange:
        with found("message_id"):
            conversation_id = (await self._store.message(message_id)).conversation_id
            with self._hub.reserve(conversation_id):
                return self._changed(message_id, await self._store.hide_branch(message_id))

    async def _restore_branch(self, message_id: str) -> BranchChange:
        with found("message_id"):
            return self._changed(message_id, await self._store.restore_branch(message_id))

    def _changed(self, message_id: str, branch: ChangedBranch) -> BranchChange:
        self._bulletin.mark(branch.conversation_id)
        return BranchChange(branch.conversation_id, message_id, branch.num_messages, branch.head_id)

    def _found(self, hit: Hit, pieces: tuple[str, ...]) -> FoundConversation:
        item = self._item(hit.record)
        return FoundConversation(
            item.id,
            item.title,
            item.pinned,
            item.created_at,
            item.updated_at,
            item.running,
            hit.message_id,
            pieces,
            hit.other_branch,
        )

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
            record.when_full,
            record.sampling,
            record.head_id,
            record.open_generation_id,
        )


async def _each(
    ids: Sequence[str], load: Callable[[str], Awaitable[Loaded]]
) -> AsyncIterator[Loaded]:
    """Those conversations, loaded one after the other; what is deleted meanwhile is left out."""
    for conversation_id in ids:
        with suppress(NotFoundError):
            yield await load(conversation_id)


def _report(read: ReadFile, stored: Sequence[StoredImport], faults: Faults) -> Imported:
    placed = dict(zip(read.conversations, stored, strict=True))
    new = {i: each.conversation_id for i, each in placed.items() if each.is_new}
    twins = {i: each.conversation_id for i, each in placed.items() if not each.is_new}
    left_out = (
        LeftOut(id_, error.param, error.message)
        for i, id_ in new.items()
        for error in faults.get(i, ())
    )
    return Imported(
        tuple(new.values()),
        tuple(starmap(AlreadyHere, twins.items())),
        tuple(left_out),
        read.num_empty,
    )


def _outline_node(row: OutlineRow) -> OutlineNode:
    return OutlineNode(row.id, row.parent_id, row.role, row.status, one_line(row.beginning))


@contextmanager
def _places(limit: int) -> Iterator[None]:
    """Refuse a `limit` out of range, and an `after` that no page has given."""
    if not 1 <= limit <= MAX_PAGE_SIZE:
        message = f"limit is {limit}; 1 to {MAX_PAGE_SIZE} is allowed"
        raise RequestError(message, param="limit")
    try:
        yield
    except ValueError:
        raise RequestError("after must be the `next` of a page", param="after") from None


def _whole_messages(records: Iterable[MessageRecord]) -> tuple[Message, ...]:
    return tuple(Message(**_fields(record)) for record in records)


def _shown_messages(
    record: ConversationRecord, tree: MessageTree, messages: Mapping[str, MessageRecord]
) -> tuple[tuple[ShownMessage, ...], tuple[ShownMessage, ...]]:
    """The path to the head, and the open candidates."""
    open_id = record.open_generation_id
    candidates = [] if open_id is None else tree.answers(open_id)
    return (
        tuple(_shown(messages[i], tree) for i in tree.path(record.head_id)),
        tuple(_shown(messages[i], tree) for i in candidates),
    )


def _shown(record: MessageRecord, tree: MessageTree) -> ShownMessage:
    return ShownMessage(**_fields(record), sibling_ids=tree.siblings(record.id))


def _fields(record: MessageRecord) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(Message)}
