"""Which conversations of a file are here already, so that a file that is read twice makes no twins.

One is here when one that is not deleted was made from the same (`origin`), or has all its messages, under the ids, in the
places of the tree and with the roles and texts that the file gives them. What was said in it since does not matter: messages
are never changed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from storage.models import Conversation, Message
from storage.records import ImportedConversation, ImportedMessage
from storage.rows import IDS_PER_QUERY

T = TypeVar("T")
GoOn = Callable[[], None]
"""Is called between two queries; raises when there is to be no other."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What must be here so that the conversation at `position` of the file is: a message, and what a query finds of it."""

    position: int
    message_id: str | None
    found: tuple[str, str | None, str, str]
    """Its conversation's id, its parent's, its role and its text."""


def always() -> None:
    """A `GoOn` that never ends anything."""


def first_places(imported: Sequence[ImportedConversation]) -> list[int]:
    """By position, where the file has the same conversation first; for most that is where they stand."""
    first: dict[str, int] = {}
    return [
        position if each.origin is None else first.setdefault(each.origin, position)
        for position, each in enumerate(imported)
    ]


async def find_twins(
    session: AsyncSession, imported: Sequence[ImportedConversation], go_on: GoOn
) -> dict[int, str]:
    """The conversation that is here already, by position in `imported`."""
    origins = [each.origin for each in imported if each.origin]
    by_origin = await _by_origin(session, _portions(origins, go_on))
    twins: dict[int, str] = {}
    others: dict[int, tuple[ImportedMessage, ...]] = {}
    for position, each in enumerate(imported):
        if each.origin in by_origin:
            twins[position] = by_origin[each.origin]
        elif each.messages:
            others[position] = each.messages
    first_ids = [own_id for m in others.values() if (own_id := m[0].own_id)]
    homes = await _homes(session, _portions(first_ids, go_on))
    there = {i: home for i, m in others.items() if (home := homes.get(m[0].own_id or ""))}
    wanted = (each for i, home in there.items() for each in _wanted(i, home, others[i]))
    lacking = await _lacking(session, _portions(wanted, go_on))
    return twins | {i: home for i, home in there.items() if i not in lacking}


async def _by_origin(session: AsyncSession, portions: Iterable[list[str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for some in portions:
        columns = select(Conversation.origin, Conversation.id)
        query = columns.where(Conversation.origin.in_(some), Conversation.deleted_at.is_(None))
        found |= {str(origin): id_ for origin, id_ in await session.execute(query)}
    return found


async def _homes(session: AsyncSession, portions: Iterable[list[str]]) -> dict[str, str]:
    """Whose messages those of these ids are, as far as they are to be seen."""
    found: dict[str, str] = {}
    for some in portions:
        query = _seen(select(Message.id, Message.conversation_id)).where(Message.id.in_(some))
        found |= {row.id: row.conversation_id for row in await session.execute(query)}
    return found


def _wanted(position: int, home: str, messages: Sequence[ImportedMessage]) -> Iterator[_Wanted]:
    for each in messages:
        parent_id = None if each.parent is None else messages[each.parent].own_id
        yield _Wanted(position, each.own_id, (home, parent_id, each.role, each.content))


async def _lacking(session: AsyncSession, portions: Iterable[list[_Wanted]]) -> set[int]:
    """Positions of which some message is not there as it is wanted."""
    lacking: set[int] = set()
    for some in portions:
        columns = select(
            Message.id, Message.conversation_id, Message.parent_id, Message.role, Message.content
        )
        query = _seen(columns).where(Message.id.in_([each.message_id for each in some]))
        there = {row.id: tuple(row[1:]) for row in await session.execute(query)}
        lacking |= {each.position for each in some if there.get(each.message_id) != each.found}
    return lacking


def _portions(values: Iterable[T], go_on: GoOn) -> Iterator[list[T]]:
    """As many as a query names, gathered only then: others go on between two."""
    iterator = iter(values)
    while some := list(islice(iterator, IDS_PER_QUERY)):
        go_on()
        yield some


def _seen(query: Select) -> Select:
    """Of messages, those that are not deleted, in conversations that are not."""
    joined = query.join(Conversation, Conversation.id == Message.conversation_id)
    return joined.where(Message.hidden_by.is_(None), Conversation.deleted_at.is_(None))
