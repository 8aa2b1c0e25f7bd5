"""Writing a turn: the user's message and the rows of its answers, in one transaction, and moving the head.

Functions over a session; storage/conversations.py gives them their transactions. `created_at` is set here, inside the
write transaction, and strictly grows inside a conversation even when the clock does not.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from storage.errors import MissingRowError
from storage.ids import new_id
from storage.models import Conversation, Message
from storage.records import NewTurn, OutlineRow, StoredTurn, TreeNode
from storage.rows import portions_of
from storage.tree import MessageTree

_TICK = timedelta(microseconds=1)


async def add_turn(session: AsyncSession, turn: NewTurn) -> StoredTurn:
    """Store a turn; the head moves to its first answer. Raises MissingRowError."""
    if turn.conversation_id is None:
        return await _add_first_turn(session, turn)
    conversation = await _open_conversation(session, turn.conversation_id)
    now = await next_time(session, conversation.id)
    rows, stored = _rows(turn, conversation.id, now)
    await _insert(session, rows)
    conversation.open_generation_id = _opened_by(turn)
    conversation.updated_at = now
    await move_head(session, conversation, stored.answer_ids[0])
    return stored


async def _add_first_turn(session: AsyncSession, turn: NewTurn) -> StoredTurn:
    """Nothing is there yet that would have to be looked up: two statements, as the first token waits for them."""
    conversation = new_conversation(turn.title, turn.system_prompt)
    rows, stored = _rows(turn, conversation.id, conversation.created_at)
    conversation.open_generation_id = _opened_by(turn)
    conversation.head_id = stored.answer_ids[0]
    session.add(conversation)
    await session.flush()
    await _insert(session, rows)
    return stored


async def _insert(session: AsyncSession, rows: list[dict[str, Any]]) -> None:
    """In one statement: without `render_nulls` there is one for each set of columns that are not null."""
    await session.execute(insert(Message), rows, execution_options={"render_nulls": True})


def _opened_by(turn: NewTurn) -> str | None:
    return turn.generation_id if len(turn.answers) > 1 else None


def _rows(
    turn: NewTurn, conversation_id: str, now: datetime
) -> tuple[list[dict[str, Any]], StoredTurn]:
    """The messages of a turn; the user's points to its first answer as the one last viewed."""
    answer_ids = tuple(new_id() for _ in turn.answers)
    rows: list[dict[str, Any]] = []
    parent_id = turn.parent_id
    if turn.content is not None:
        rows.append(_user_row(turn, conversation_id, answer_ids[0], now))
        parent_id = rows[0]["id"]
    if parent_id is None:
        raise MissingRowError("a turn without content needs the message it answers")
    rows += (
        _answer_row(turn, conversation_id, parent_id, index, now + (index + 1) * _TICK)
        | {"id": answer_id}
        for index, answer_id in enumerate(answer_ids)
    )
    return rows, StoredTurn(conversation_id, parent_id, answer_ids)


async def move_head(session: AsyncSession, conversation: Conversation, message_id: str) -> None:
    """Show a leaf, and remember on every message of its path that this is the way that was viewed."""
    tree = await load_tree(session, conversation.id)
    changed = tree.changed_views(tree.path(message_id))
    if changed:
        rows = [{"id": parent, "last_viewed_child_id": child} for parent, child in changed]
        await session.execute(update(Message), rows)
    conversation.head_id = message_id


async def load_tree(session: AsyncSession, conversation_id: str) -> MessageTree:
    """The nodes that are to be seen, in their order."""
    columns = (
        Message.id,
        Message.parent_id,
        Message.last_viewed_child_id,
        Message.role,
        Message.generation_id,
    )
    query = select(*columns).where(Message.conversation_id == conversation_id)
    query = query.where(Message.hidden_by.is_(None))
    portions = portions_of(session, query.order_by(Message.created_at))
    return MessageTree([TreeNode(*row) async for rows in portions for row in rows])


async def load_outline(
    session: AsyncSession, conversation_id: str, length: int
) -> tuple[OutlineRow, ...]:
    """The first `length` characters of the messages that are to be seen, in their order."""
    beginning = func.substr(Message.content, 1, length)
    query = select(Message.id, Message.parent_id, Message.role, Message.status, beginning)
    query = query.where(Message.conversation_id == conversation_id, Message.hidden_by.is_(None))
    portions = portions_of(session, query.order_by(Message.created_at))
    return tuple([OutlineRow(*row) async for rows in portions for row in rows])


async def next_time(session: AsyncSession, conversation_id: str) -> datetime:
    """Now, or just after the conversation's last message when the clock stands behind it."""
    query = select(func.max(Message.created_at)).where(Message.conversation_id == conversation_id)
    last = await session.scalar(query)
    now = datetime.now(UTC)
    return now if last is None else max(now, last + _TICK)


def new_conversation(title: str, system_prompt: str | None = None) -> Conversation:
    """A conversation without messages."""
    now = datetime.now(UTC)
    return Conversation(
        id=new_id(),
        title=title,
        system_prompt=system_prompt,
        when_full="stop",
        sampling={},
        pinned=False,
        created_at=now,
        updated_at=now,
    )


async def _open_conversation(session: AsyncSession, conversation_id: str) -> Conversation:
    conversation = await session.get(Conversation, conversation_id, with_for_update=True)
    if conversation is None or conversation.deleted_at is not None:
        raise MissingRowError(f"conversation {conversation_id} is gone")
    return conversation


def _user_row(
    turn: NewTurn, conversation_id: str, first_answer_id: str, now: datetime
) -> dict[str, Any]:
    return {
        "id": new_id(),
        "conversation_id": conversation_id,
        "parent_id": turn.parent_id,
        "last_viewed_child_id": first_answer_id,
        "role": "user",
        "content": turn.content,
        "token_ids": None,
        "status": "done",
        "generation_id": None,
        "candidate_index": None,
        "model": None,
        "dropped_messages": None,
        "seed": None,
        "sampling": None,
        "created_at": now,
    }


def _answer_row(
    turn: NewTurn, conversation_id: str, parent_id: str, index: int, now: datetime
) -> dict[str, Any]:
    return {
        "conversation_id": conversation_id,
        "parent_id": parent_id,
        "last_viewed_child_id": None,
        "role": "assistant",
        "content": turn.beginning.content,
        "token_ids": turn.beginning.token_ids,
        "status": "generating",
        "generation_id": turn.generation_id,
        "candidate_index": index,
        "model": turn.model,
        "dropped_messages": turn.dropped_messages,
        "seed": turn.answers[index].seed,
        "sampling": dict(turn.answers[index].sampling),
        "created_at": now,
    }
