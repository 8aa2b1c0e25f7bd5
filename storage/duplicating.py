"""Copying a conversation inside the database: new ids for everything that is to be seen, all else as it is."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import exists, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from storage.ids import new_id
from storage.models import Conversation, Message
from storage.turns import new_conversation

_COLUMNS = list(Message.__table__.columns)


async def duplicate(session: AsyncSession, original: Conversation, titles: Iterable[str]) -> str:
    """A copy under the first of `titles` that is free; an answer that is being written is `interrupted` in it. Returns its id."""
    copy = new_conversation(await _first_free(session, titles))
    copy.system_prompt, copy.sampling = original.system_prompt, dict(original.sampling)
    copy.owner, copy.when_full = original.owner, original.when_full
    session.add(copy)
    await session.flush()
    query = select(*_COLUMNS).where(
        Message.conversation_id == original.id, Message.hidden_by.is_(None)
    )
    rows = [dict(row._mapping) for row in await session.execute(query.order_by(Message.created_at))]
    ids = _NewIds()
    if rows:
        await session.execute(insert(Message), [_copied(row, copy.id, ids) for row in rows])
    copy.head_id = ids.of(original.head_id)
    copy.open_generation_id = ids.of(original.open_generation_id)
    return copy.id


async def _first_free(session: AsyncSession, titles: Iterable[str]) -> str:
    for title in titles:
        named = exists().where(Conversation.title == title, Conversation.deleted_at.is_(None))
        if not await session.scalar(select(named)):
            return title
    raise AssertionError("a copy may be called by any number of titles")


class _NewIds:
    """One new id for each old one."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def of(self, old: str | None) -> str | None:
        return None if old is None else self._ids.setdefault(old, new_id())


def _copied(row: dict[str, Any], conversation_id: str, ids: _NewIds) -> dict[str, Any]:
    renamed = ("id", "parent_id", "last_viewed_child_id", "generation_id")
    status = "interrupted" if row["status"] == "generating" else row["status"]
    changes = {name: ids.of(row[name]) for name in renamed}
    return row | changes | {"conversation_id": conversation_id, "status": status}
