"""Deleting a branch, and bringing it back: a message and all that follows from it are hidden, nothing is removed.

Each hidden message names the one that was deleted (`hidden_by`), so a branch comes back as it went: without what had been
deleted inside of it before.
"""

from collections.abc import Sequence

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from storage.errors import MissingRowError
from storage.models import Conversation, Message
from storage.records import ChangedBranch
from storage.rows import IDS_PER_QUERY
from storage.tree import MessageTree
from storage.turns import load_tree, move_head


async def hide_branch(
    session: AsyncSession, conversation: Conversation, message_id: str
) -> ChangedBranch:
    """Hide a visible message with all below it. A head in there moves to what was last viewed beside it, or above it."""
    tree = await load_tree(session, conversation.id)
    hidden = tree.below(message_id)
    await _mark(session, hidden, message_id)
    conversation.open_generation_id = None
    if conversation.head_id in hidden:
        left = await load_tree(session, conversation.id)
        await _show(session, conversation, _head_beside(left, tree.nodes[message_id].parent_id))
    return ChangedBranch(conversation.id, len(hidden), conversation.head_id)


async def restore_branch(
    session: AsyncSession, conversation: Conversation, message: Message
) -> ChangedBranch:
    """Bring back what `hide_branch` hid. The head stays, but for a conversation that had none.

    Raises MissingRowError when the message was not deleted by itself, or the one above it is hidden.
    """
    before = await load_tree(session, conversation.id)
    if message.parent_id is not None and message.parent_id not in before.nodes:
        raise MissingRowError(f"the message above {message.id} is deleted; restore that first")
    result = await session.execute(
        update(Message)
        .where(Message.conversation_id == conversation.id, Message.hidden_by == message.id)
        .values(hidden_by=None)
        .returning(Message.id)
    )
    count = len(result.all())
    if not count:
        raise MissingRowError(f"message {message.id} is not deleted")
    if conversation.head_id is None:
        tree = await load_tree(session, conversation.id)
        await _show(session, conversation, tree.viewed_leaf(message.id))
    return ChangedBranch(conversation.id, count, conversation.head_id)


def _head_beside(tree: MessageTree, parent_id: str | None) -> str | None:
    return tree.first_leaf() if parent_id is None else tree.viewed_leaf(parent_id)


async def _show(session: AsyncSession, conversation: Conversation, head_id: str | None) -> None:
    if head_id is None:
        conversation.head_id = None
    else:
        await move_head(session, conversation, head_id)


async def _mark(session: AsyncSession, ids: Sequence[str], hidden_by: str) -> None:
    for start in range(0, len(ids), IDS_PER_QUERY):
        some = ids[start : start + IDS_PER_QUERY]
        await session.execute(
            update(Message).where(Message.id.in_(some)).values(hidden_by=hidden_by)
        )
