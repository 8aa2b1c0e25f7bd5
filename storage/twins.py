"""Which conversations of a file are here already, so that a file that is read twice makes no twins.

One is here when one that is not deleted was made from the same (`origin`), or has all its messages, under the ids and with
the texts that the file gives them. What was said in it since does not matter: messages are never changed.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from storage.models import Conversation, Message
from storage.records import ImportedConversation, ImportedMessage
from storage.rows import IDS_PER_QUERY

T = TypeVar("T")


async def find_twins(
    session: AsyncSession, imported: Sequence[ImportedConversation]
) -> dict[int, str]:
    """The conversation that is here already, by position in `imported`."""
    by_origin = await _by_origin(session, [each.origin for each in imported if each.origin])
    twins: dict[int, str] = {}
    others: dict[int, tuple[ImportedMessage, ...]] = {}
    for position, each in enumerate(imported):
        if each.origin in by_origin:
            twins[position] = by_origin[each.origin]
        elif each.messages:
            others[position] = each.messages
    first_ids = [messages[0].own_id for messages in others.values()]
    homes = await _homes(session, [id_ for id_ in first_ids if id_])
    for position, messages in others.items():
        home = homes.get(messages[0].own_id or "")
        if home and await _holds(session, home, messages):
            twins[position] = home
    return twins


async def _by_origin(session: AsyncSession, origins: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for some in _portions(origins):
        columns = select(Conversation.origin, Conversation.id)
        query = columns.where(Conversation.origin.in_(some), Conversation.deleted_at.is_(None))
        found |= {str(origin): id_ for origin, id_ in await session.execute(query)}
    return found


async def _homes(session: AsyncSession, message_ids: Sequence[str]) -> dict[str, str]:
    """Whose messages these are, as far as they are to be seen."""
    found: dict[str, str] = {}
    for some in _portions(message_ids):
        query = _seen(select(Message.id, Message.conversation_id)).where(Message.id.in_(some))
        found |= {row.id: row.conversation_id for row in await session.execute(query)}
    return found


async def _holds(session: AsyncSession, home: str, messages: Sequence[ImportedMessage]) -> bool:
    """Whether a conversation has all of these messages, with these texts."""
    for some in _portions(messages):
        query = _seen(select(Message.id, Message.content)).where(
            Message.conversation_id == home, Message.id.in_([each.own_id for each in some])
        )
        texts = {row.id: row.content for row in await session.execute(query)}
        if any(texts.get(each.own_id or "") != each.content for each in some):
            return False
    return True


def _portions(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), IDS_PER_QUERY):
        yield values[start : start + IDS_PER_QUERY]


def _seen(query: Select) -> Select:
    """Of messages, those that are not deleted, in conversations that are not."""
    joined = query.join(Conversation, Conversation.id == Message.conversation_id)
    return joined.where(Message.hidden_by.is_(None), Conversation.deleted_at.is_(None))
