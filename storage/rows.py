"""Finding rows by id, with a complaint for those that are not there or deleted."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields

from sqlalchemy import Executable, Row, select
from sqlalchemy.ext.asyncio import AsyncSession

from storage.errors import MissingRowError
from storage.models import Conversation, Message
from storage.records import MessageRecord, PathMessage

IDS_PER_QUERY = 500
ROWS_AT_A_TIME = 200
MESSAGE_COLUMNS = [getattr(Message, field.name) for field in fields(MessageRecord)]


async def portions_of(session: AsyncSession, query: Executable) -> AsyncIterator[Sequence[Row]]:
    """The rows of a query, ROWS_AT_A_TIME: making Python's values of them is work for the event loop, which others need too."""
    result = await session.execute(query)
    while rows := result.fetchmany(ROWS_AT_A_TIME):
        yield rows
        await asyncio.sleep(0)


async def any_conversation(session: AsyncSession, conversation_id: str) -> Conversation:
    found = await session.get(Conversation, conversation_id)
    if found is None:
        raise MissingRowError(f"there is no conversation {conversation_id}")
    return found


async def visible(
    session: AsyncSession, conversation_id: str, *, for_update: bool = False
) -> Conversation:
    found = await session.get(Conversation, conversation_id, with_for_update=for_update)
    if found is None or found.deleted_at is not None:
        raise MissingRowError(f"there is no conversation {conversation_id}")
    return found


async def any_message(session: AsyncSession, message_id: str) -> Message:
    found = await session.get(Message, message_id)
    if found is None:
        raise MissingRowError(f"there is no message {message_id}")
    return found


async def visible_message(
    session: AsyncSession, message_id: str, *, for_update: bool = False
) -> tuple[Message, Conversation]:
    """A message that is not deleted, of a conversation that is not deleted."""
    found = await any_message(session, message_id)
    if found.hidden_by is not None:
        raise MissingRowError(f"message {message_id} is deleted")
    return found, await visible(session, found.conversation_id, for_update=for_update)


async def path_messages(session: AsyncSession, ids: Sequence[str]) -> tuple[PathMessage, ...]:
    """The messages of a path, in its order. Of each row only what is needed: a first token waits for them."""
    columns = (Message.id, Message.role, Message.content)
    found: dict[str, PathMessage] = {}
    for start in range(0, len(ids), IDS_PER_QUERY):
        some = ids[start : start + IDS_PER_QUERY]
        rows = await session.execute(select(*columns).where(Message.id.in_(some)))
        found |= {row.id: PathMessage(*row) for row in rows}
    return tuple(found[i] for i in ids)


async def messages_by_id(session: AsyncSession, ids: Sequence[str]) -> dict[str, MessageRecord]:
    found: dict[str, MessageRecord] = {}
    for start in range(0, len(ids), IDS_PER_QUERY):
        some = ids[start : start + IDS_PER_QUERY]
        rows = await session.execute(select(*MESSAGE_COLUMNS).where(Message.id.in_(some)))
        found |= {row.id: MessageRecord(**row._mapping) for row in rows}
    return found
