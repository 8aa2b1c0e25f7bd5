"""Storing a conversation that comes from elsewhere: new ids for everything, nothing that exists is touched."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from storage.ids import new_id
from storage.models import Message
from storage.records import ImportedConversation, ImportedMessage
from storage.turns import move_head, new_conversation


async def add_import(session: AsyncSession, imported: ImportedConversation) -> str:
    """Store a conversation and its tree; the order of `messages` becomes their order. Returns its id."""
    conversation = new_conversation(imported.title)
    conversation.system_prompt = imported.system_prompt
    conversation.sampling = dict(imported.sampling)
    conversation.pinned = imported.pinned
    session.add(conversation)
    await session.flush()
    if imported.messages:
        rows = _rows(imported.messages, conversation.id, conversation.created_at)
        await session.execute(insert(Message), rows)
        head = imported.head if imported.head is not None else len(rows) - 1
        await move_head(session, conversation, rows[head]["id"])
    return conversation.id


def _rows(
    messages: Sequence[ImportedMessage], conversation_id: str, start: datetime
) -> list[dict[str, Any]]:
    ids = [new_id() for _ in messages]
    generations = {m.generation_id: new_id() for m in messages if m.generation_id is not None}
    return [
        _columns(message)
        | {
            "id": ids[position],
            "conversation_id": conversation_id,
            "parent_id": None if message.parent is None else ids[message.parent],
            "generation_id": message.generation_id and generations[message.generation_id],
            "created_at": start + timedelta(microseconds=position),
        }
        for position, message in enumerate(messages)
    ]


def _columns(message: ImportedMessage) -> dict[str, Any]:
    columns = asdict(message)
    del columns["parent"]
    return columns
