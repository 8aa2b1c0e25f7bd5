"""The part of a tree that a window shows: a path and the siblings of its messages, however large the rest is."""

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from storage.models import Message
from storage.records import TreeNode
from storage.rows import portions_of
from storage.tree import MessageTree


async def load_neighbours(
    session: AsyncSession, conversation_id: str, head_id: str | None
) -> MessageTree:
    """The nodes on the path to `head_id` and their siblings, in their order; what is deleted is left out."""
    path = select(Message.id, Message.parent_id).where(Message.id == head_id)
    path = path.cte("path", recursive=True)
    above = aliased(Message)
    step = select(above.id, above.parent_id).join(path, above.id == path.c.parent_id)
    path = path.union_all(step)
    columns = (
        Message.id,
        Message.parent_id,
        Message.last_viewed_child_id,
        Message.role,
        Message.generation_id,
    )
    beside = or_(Message.parent_id.is_(None), Message.parent_id.in_(select(path.c.parent_id)))
    query = select(*columns).where(
        Message.conversation_id == conversation_id, Message.hidden_by.is_(None), beside
    )
    portions = portions_of(session, query.order_by(Message.created_at))
    return MessageTree([TreeNode(*row) async for rows in portions for row in rows])
