"""The list of conversations, page by page: pinned ones first, then the most recently used.

A page begins behind a place, not at a number: what is said meanwhile moves no row from one page into the next. Each page
is one walk along the index of that order.
"""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Boolean, String, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from storage.models import Conversation
from storage.records import ConversationPage, ConversationRecord
from storage.types import UtcDateTime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ORDER = (Conversation.pinned, Conversation.updated_at, Conversation.id)
_FIELDS = [field.name for field in fields(ConversationRecord)]


async def list_page(session: AsyncSession, after: str | None, limit: int) -> ConversationPage:
    """At most `limit` conversations behind the place `after`. Raises ValueError when that is no place."""
    rows = await session.scalars(in_order(select(Conversation), after, limit))
    records = tuple(record_of(row) for row in rows)
    return ConversationPage(records[:limit], next_place(records, limit))


def in_order(statement: Any, after: str | None, limit: int) -> Any:
    """`statement` over visible conversations, in order, from behind `after`; one row more than `limit`, if there is one."""
    statement = statement.where(Conversation.deleted_at.is_(None))
    if after is not None:
        statement = statement.where(tuple_(*_ORDER) < _parse(after))
    return statement.order_by(*(column.desc() for column in _ORDER)).limit(limit + 1)


def next_place(records: tuple[ConversationRecord, ...], limit: int) -> str | None:
    """Where the next page begins, when `in_order` has found a row too many."""
    if len(records) <= limit:
        return None
    last = records[limit - 1]
    microseconds = (last.updated_at - _EPOCH) // timedelta(microseconds=1)
    return f"{int(last.pinned)}.{microseconds}.{last.id}"


def record_of(row: Conversation) -> ConversationRecord:
    return ConversationRecord(**{name: getattr(row, name) for name in _FIELDS})


def _parse(place: str) -> Any:
    pinned, microseconds, identity = place.split(".")
    number = int(microseconds)
    if str(number) != microseconds:
        raise ValueError(f"{microseconds} is not how a place has it")
    try:
        updated_at = _EPOCH + timedelta(microseconds=number)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    return tuple_(
        literal(pinned == "1", Boolean),
        literal(updated_at, UtcDateTime),
        literal(identity, String),
    )
