"""Storing conversations that come from elsewhere: new ids for everything, nothing that exists is touched.

A file may have hundreds of thousands of messages: rows are made in a thread and stored some at a time, so that the event
loop goes on meanwhile. It is one transaction all the same. `go_on` is called between two portions, by which who waits can end
it: what that raises leaves nothing stored.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from storage.ids import new_id
from storage.models import Conversation, Message
from storage.records import ImportedConversation, ImportedMessage, StoredImport
from storage.twins import GoOn, find_twins, first_places

Batch = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Rows of conversations, and of their messages."""

ROWS_PER_STATEMENT = 500


async def add_imports(
    session: AsyncSession, imported: Sequence[ImportedConversation], go_on: GoOn
) -> tuple[str, ...]:
    """Store conversations with their trees; the order of `messages` becomes their order. Returns their ids."""
    ids: list[str] = []
    batches = _batches(imported, datetime.now(UTC))
    while batch := await asyncio.to_thread(next, batches, None):
        conversations, messages = batch
        await session.execute(insert(Conversation), conversations)
        for start in range(0, len(messages), ROWS_PER_STATEMENT):
            go_on()
            await session.execute(insert(Message), messages[start : start + ROWS_PER_STATEMENT])
        ids += [row["id"] for row in conversations]
    return tuple(ids)


async def add_new_imports(
    session: AsyncSession, imported: Sequence[ImportedConversation], go_on: GoOn
) -> tuple[StoredImport, ...]:
    """Store those that are not here yet, each once; tells of each where it is."""
    places = await find_twins(session, imported, go_on)
    first = first_places(imported)
    new = [i for i in range(len(imported)) if first[i] == i and i not in places]
    places |= zip(new, await add_imports(session, [imported[i] for i in new], go_on), strict=True)
    is_new = set(new)
    return tuple(StoredImport(places[first[i]], i in is_new) for i in range(len(imported)))


def _batches(imported: Sequence[ImportedConversation], now: datetime) -> Iterator[Batch]:
    """Whole conversations, together about ROWS_PER_STATEMENT messages or more."""
    batch: Batch = ([], [])
    for each in imported:
        conversation = _conversation_row(each, now)
        rows = _message_rows(each, conversation["id"], now)
        conversation["head_id"] = rows[_head(each)]["id"] if rows else None
        batch[0].append(conversation)
        batch[1].extend(rows)
        if len(batch[0]) + len(batch[1]) >= ROWS_PER_STATEMENT:
            yield batch
            batch = ([], [])
    if batch[0]:
        yield batch


def _conversation_row(imported: ImportedConversation, now: datetime) -> dict[str, Any]:
    return {
        "id": new_id(),
        "title": imported.title,
        "system_prompt": imported.system_prompt,
        "when_full": imported.when_full,
        "sampling": dict(imported.sampling),
        "pinned": imported.pinned,
        "origin": imported.origin,
        "created_at": min(now, imported.created_at or now),
        "updated_at": min(now, imported.updated_at or now),
    }


def _message_rows(
    imported: ImportedConversation, conversation_id: str, now: datetime
) -> list[dict[str, Any]]:
    ids = [new_id() for _ in imported.messages]
    generations: dict[str | None, str | None] = {None: None}
    for message in imported.messages:
        generations.setdefault(message.generation_id, new_id())
    viewed = dict(pairwise(_head_path(imported)))
    return [
        _columns(message)
        | {
            "id": ids[position],
            "conversation_id": conversation_id,
            "parent_id": None if message.parent is None else ids[message.parent],
            "last_viewed_child_id": ids[viewed[position]] if position in viewed else None,
            "generation_id": generations[message.generation_id],
            "created_at": now + timedelta(microseconds=position),
        }
        for position, message in enumerate(imported.messages)
    ]


def _head(imported: ImportedConversation) -> int:
    return len(imported.messages) - 1 if imported.head is None else imported.head


def _head_path(imported: ImportedConversation) -> list[int]:
    """Positions from the first message to the head."""
    path: list[int] = []
    position = _head(imported) if imported.messages else None
    while position is not None:
        path.append(position)
        position = imported.messages[position].parent
    return path[::-1]


def _columns(message: ImportedMessage) -> dict[str, Any]:
    columns = asdict(message)
    del columns["parent"], columns["own_id"]
    return columns
