"""Conversations whose title or one of whose messages has all of some words, inside of others too, in any order.

SQLite answers from the index of migration 0003 for words of three characters and more, and reads every text for a query
that has only shorter ones. Other databases read every text (LIKE). SQLite's LIKE takes only the letters A to Z for the
same in both cases. A page costs four statements, however many conversations there are.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    and_,
    column,
    func,
    null,
    or_,
    select,
    table,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from storage.listing import in_order, next_place, record_of
from storage.models import Conversation, Message
from storage.records import Hit, HitPage

MAX_WORDS = 16
_TERM_LENGTH = 3

_rows = table("search_rows", column("id"), column("conversation_id"), column("message_id"))
_index = table("search_index", column("rowid"), column("text"))


def words_of(query: str) -> tuple[str, ...]:
    """The different words of what was typed, the first MAX_WORDS."""
    words = dict.fromkeys(query.replace("\0", " ").split())
    return tuple(words)[:MAX_WORDS]


async def search_page(
    session: AsyncSession, words: Sequence[str], after: str | None, limit: int
) -> HitPage:
    """At most `limit` hits behind the place `after`, as in the list; one a conversation, of its newest message if there are several."""
    has_index = session.get_bind().dialect.name == "sqlite"
    is_indexed = has_index and any(len(word) >= _TERM_LENGTH for word in words)
    found = (_indexed(words) if is_indexed else _scanned(words)).subquery()
    statement: Any = select(Conversation, found.c.message_id)
    statement = statement.join(found, found.c.conversation_id == Conversation.id)
    rows: Any = (await session.execute(in_order(statement, after, limit))).all()
    records = tuple(record_of(row[0]) for row in rows)
    found_in = [row[1] for row in rows[:limit]]
    message_ids = [each for each in found_in if each is not None]
    texts = await _texts(session, message_ids)
    heads = [record.head_id for record, each in zip(records, found_in, strict=False) if each]
    on_show = await _on_paths(session, heads, message_ids)
    hits = (
        Hit(record, each, texts.get(each, record.title), each is not None and each not in on_show)
        for record, each in zip(records, found_in, strict=False)
    )
    return HitPage(tuple(hits), next_place(records, limit))


def _indexed(words: Sequence[str]) -> Any:
    """Beside a maximum SQLite takes the other columns from its row: the newest message's, or the title's."""
    terms = [word for word in words if len(word) >= _TERM_LENGTH]
    quoted = " AND ".join('"' + word.replace('"', '""') + '"' for word in terms)
    short = [_contains(_index.c.text, word) for word in words if len(word) < _TERM_LENGTH]
    return (
        select(_rows.c.conversation_id, _rows.c.message_id, func.max(_rows.c.id))
        .join(_index, _index.c.rowid == _rows.c.id)
        .outerjoin(Message, Message.id == _rows.c.message_id)
        .where(column("search_index").op("MATCH")(quoted), *short)
        .where(or_(_rows.c.message_id.is_(None), _may_be_seen()))
        .group_by(_rows.c.conversation_id)
    )


def _scanned(words: Sequence[str]) -> Any:
    in_message = and_(*(_contains(Message.content, word) for word in words), _may_be_seen())
    in_title = and_(*(_contains(Conversation.title, word) for word in words))
    both = union_all(
        select(Message.conversation_id, Message.id.label("message_id")).where(in_message),
        select(Conversation.id, null().label("message_id")).where(in_title),
    ).subquery()
    newest = func.max(both.c.message_id).label("message_id")
    return select(both.c.conversation_id, newest).group_by(both.c.conversation_id)


def _may_be_seen() -> Any:
    return and_(Message.hidden_by.is_(None), Message.status != "generating")


def _contains(where: Any, word: str) -> Any:
    return where.icontains(word, autoescape=True)


async def _texts(session: AsyncSession, message_ids: Sequence[str]) -> dict[str, str]:
    query = select(Message.id, Message.content).where(Message.id.in_(message_ids))
    return {row.id: row.content for row in await session.execute(query)}


async def _on_paths(
    session: AsyncSession, head_ids: Sequence[str | None], message_ids: Sequence[str]
) -> set[str]:
    """Those of the messages that lie on the path to one of the heads."""
    path = select(Message.id, Message.parent_id).where(Message.id.in_(head_ids))
    path = path.cte("path", recursive=True)
    above = aliased(Message)
    path = path.union_all(
        select(above.id, above.parent_id).join(path, above.id == path.c.parent_id)
    )
    return set(await session.scalars(select(path.c.id).where(path.c.id.in_(message_ids))))
