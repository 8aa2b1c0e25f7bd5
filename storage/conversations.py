"""Verbs on conversations and messages. Each is one transaction; rows come back as frozen records.

A deleted conversation is hidden: reads and writes do not find it, except `restore` and `purge`. Messages are only ever
added; what changes in place is an answer while it is `generating`, and which leaf was viewed last.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from storage.branches import hide_branch, restore_branch
from storage.database import Database
from storage.duplicating import duplicate
from storage.errors import MissingRowError
from storage.importing import add_imports, add_new_imports
from storage.listing import list_page, record_of
from storage.models import GENERATING, Conversation, Message
from storage.neighbours import load_neighbours
from storage.records import (
    AnswerEnd,
    AnswerText,
    ChangedBranch,
    ConversationPage,
    ConversationRecord,
    HitPage,
    ImportedConversation,
    MessageRecord,
    NewTurn,
    OutlineRow,
    PathMessage,
    StoredImport,
    StoredTurn,
)
from storage.rows import (
    MESSAGE_COLUMNS,
    any_conversation,
    any_message,
    messages_by_id,
    path_messages,
    portions_of,
    visible,
    visible_message,
)
from storage.search import search_page
from storage.tree import MessageTree
from storage.turns import add_turn, load_outline, load_tree, move_head
from storage.twins import GoOn, always


class ConversationStore:
    """Verbs on `conversations` and `messages`. Raise MissingRowError for ids that are not there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- reading -----------------------------------------------------------------------------

    async def page(self, after: str | None, limit: int) -> ConversationPage:
        """Some of the list, pinned ones first, then the most recently used. Raises ValueError for a wrong `after`."""

        async def work(session: AsyncSession) -> ConversationPage:
            return await list_page(session, after, limit)

        return await self._database.read(work)

    async def find(self, words: Sequence[str], after: str | None, limit: int) -> HitPage:
        """Some of those whose title or one of whose messages has all words, in the same order; see storage/search.py."""

        async def work(session: AsyncSession) -> HitPage:
            return await search_page(session, words, after, limit)

        return await self._database.read(work)

    async def get(self, conversation_id: str) -> ConversationRecord:
        """One conversation."""

        async def work(session: AsyncSession) -> ConversationRecord:
            return record_of(await visible(session, conversation_id))

        return await self._database.read(work)

    async def messages(
        self, conversation_id: str
    ) -> tuple[ConversationRecord, MessageTree, tuple[MessageRecord, ...]]:
        """A conversation with all its messages, oldest first."""

        async def work(
            session: AsyncSession,
        ) -> tuple[ConversationRecord, MessageTree, tuple[MessageRecord, ...]]:
            conversation = await visible(session, conversation_id)
            tree = await load_tree(session, conversation_id)
            query = select(*MESSAGE_COLUMNS).where(
                Message.conversation_id == conversation_id, Message.hidden_by.is_(None)
            )
            portions = portions_of(session, query.order_by(Message.created_at))
            records = [MessageRecord(**r._mapping) async for rows in portions for r in rows]
            return record_of(conversation), tree, tuple(records)

        return await self._database.read(work)

    async def view(
        self, conversation_id: str
    ) -> tuple[ConversationRecord, MessageTree, dict[str, MessageRecord]]:
        """A conversation with the messages on the path to its head and its open candidates, by id.

        The tree has that path and its siblings.
        """

        async def work(
            session: AsyncSession,
        ) -> tuple[ConversationRecord, MessageTree, dict[str, MessageRecord]]:
            conversation = await visible(session, conversation_id)
            tree = await load_neighbours(session, conversation_id, conversation.head_id)
            ids = tree.path(conversation.head_id)
            if conversation.open_generation_id is not None:
                ids += tree.answers(conversation.open_generation_id)
            return record_of(conversation), tree, await messages_by_id(session, ids)

        return await self._database.read(work)

    async def outline(
        self, conversation_id: str, length: int
    ) -> tuple[ConversationRecord, tuple[OutlineRow, ...]]:
        """A conversation and the beginnings of all its messages, oldest first."""

        async def work(
            session: AsyncSession,
        ) -> tuple[ConversationRecord, tuple[OutlineRow, ...]]:
            conversation = await visible(session, conversation_id)
            return record_of(conversation), await load_outline(session, conversation_id, length)

        return await self._database.read(work)

    async def message(self, message_id: str) -> MessageRecord:
        """One message of a conversation that is not deleted."""

        async def work(session: AsyncSession) -> MessageRecord:
            await visible_message(session, message_id)
            return (await messages_by_id(session, [message_id]))[message_id]

        return await self._database.read(work)

    async def token_ids(self, message_id: str) -> tuple[int, ...] | None:
        """What the model drew for a message; None where nobody knows, and for a message that is not there."""

        async def work(session: AsyncSession) -> tuple[int, ...] | None:
            return await session.scalar(select(Message.token_ids).where(Message.id == message_id))

        return await self._database.read(work)

    async def path(self, conversation_id: str, message_id: str) -> tuple[PathMessage, ...]:
        """Messages of a conversation that is there, from the first one down to `message_id`."""

        async def work(session: AsyncSession) -> tuple[PathMessage, ...]:
            tree = await load_tree(session, conversation_id)
            if message_id not in tree.nodes:
                raise MissingRowError(f"there is no message {message_id}")
            return await path_messages(session, tree.path(message_id))

        return await self._database.read(work)

    async def branch(self, message_id: str) -> tuple[str | None, tuple[PathMessage, ...]]:
        """The conversation's system prompt, and the path to the leaf last viewed at or below a message."""

        async def work(session: AsyncSession) -> tuple[str | None, tuple[PathMessage, ...]]:
            _, conversation = await visible_message(session, message_id)
            tree = await load_tree(session, conversation.id)
            path = tree.path(tree.viewed_leaf(message_id))
            return conversation.system_prompt, await path_messages(session, path)

        return await self._database.read(work)

    # --- turns -------------------------------------------------------------------------------

    async def add_turn(self, turn: NewTurn) -> StoredTurn:
        """Store the user's message and the rows of its answers (`generating`); see storage/turns.py."""

        async def work(session: AsyncSession) -> StoredTurn:
            return await add_turn(session, turn)

        return await self._database.write(work)

    async def select(self, message_id: str) -> str:
        """Move the head to the leaf last viewed below a message and close open candidates; returns the leaf."""

        async def work(session: AsyncSession) -> str:
            _, conversation = await visible_message(session, message_id, for_update=True)
            leaf = (await load_tree(session, conversation.id)).viewed_leaf(message_id)
            await move_head(session, conversation, leaf)
            conversation.open_generation_id = None
            return leaf

        return await self._database.write(work)

    async def save_texts(self, texts: Mapping[str, AnswerText]) -> None:
        """Checkpoint streaming answers by message id. One that has ended is left alone."""

        async def work(session: AsyncSession) -> None:
            for message_id, text in texts.items():
                await session.execute(_generating(message_id).values(**asdict(text)))

        await self._database.write(work)

    async def end_answer(self, message_id: str, end: AnswerEnd) -> None:
        """Store the final state of a streaming answer."""

        async def work(session: AsyncSession) -> None:
            await session.execute(_generating(message_id).values(**asdict(end)))

        await self._database.write(work)

    async def interrupt_leftovers(self) -> int:
        """Mark what a crash left `generating` as `interrupted`; returns how many answers."""

        async def work(session: AsyncSession) -> int:
            ids = (await session.scalars(select(Message.id).where(GENERATING))).all()
            await session.execute(update(Message).where(GENERATING).values(status="interrupted"))
            return len(ids)

        return await self._database.write(work)

    # --- branches ----------------------------------------------------------------------------

    async def hide_branch(self, message_id: str) -> ChangedBranch:
        """Delete a message with all that follows from it, so that `restore_branch` can bring it back."""

        async def work(session: AsyncSession) -> ChangedBranch:
            _, conversation = await visible_message(session, message_id, for_update=True)
            return await hide_branch(session, conversation, message_id)

        return await self._database.write(work)

    async def restore_branch(self, message_id: str) -> ChangedBranch:
        """Undo `hide_branch` of this message; see storage/branches.py."""

        async def work(session: AsyncSession) -> ChangedBranch:
            message = await any_message(session, message_id)
            conversation = await visible(session, message.conversation_id, for_update=True)
            return await restore_branch(session, conversation, message)

        return await self._database.write(work)

    # --- the conversation itself -------------------------------------------------------------

    async def update(self, conversation_id: str, changes: Mapping[str, Any]) -> None:
        """Set columns: title, pinned, system_prompt, sampling. `updated_at` stays: nothing was said."""

        async def work(session: AsyncSession) -> None:
            conversation = await visible(session, conversation_id, for_update=True)
            for name, value in changes.items():
                setattr(conversation, name, value)

        await self._database.write(work)

    async def hide(self, conversation_id: str) -> None:
        """Delete so that `restore` can bring it back."""
        await self.update(conversation_id, {"deleted_at": datetime.now(UTC)})

    async def restore(self, conversation_id: str) -> None:
        """Undo `hide`; nothing happens to one that is not hidden."""

        async def work(session: AsyncSession) -> None:
            (await any_conversation(session, conversation_id)).deleted_at = None

        await self._database.write(work)

    async def purge(self, conversation_id: str) -> None:
        """Remove the conversation, hidden or not, and its messages for good."""

        async def work(session: AsyncSession) -> None:
            await any_conversation(session, conversation_id)
            await session.execute(delete(Message).where(Message.conversation_id == conversation_id))
            await session.execute(delete(Conversation).where(Conversation.id == conversation_id))

        await self._database.write(work)

    async def add_imports(
        self, imported: Sequence[ImportedConversation], go_on: GoOn = always
    ) -> tuple[str, ...]:
        """Store conversations from elsewhere under new ids, all or none; returns their ids. For `go_on` see storage/importing.py."""

        async def work(session: AsyncSession) -> tuple[str, ...]:
            return await add_imports(session, imported, go_on)

        return await self._database.write(work)

    async def add_new_imports(
        self, imported: Sequence[ImportedConversation], go_on: GoOn = always
    ) -> tuple[StoredImport, ...]:
        """The same, of those alone that are not here yet (storage/twins.py)."""

        async def work(session: AsyncSession) -> tuple[StoredImport, ...]:
            return await add_new_imports(session, imported, go_on)

        return await self._database.write(work)

    async def duplicate(self, conversation_id: str, titles: Callable[[str], Iterable[str]]) -> str:
        """Store a copy under new ids, without what is deleted in it; returns its id.

        It is called by the first of `titles`, given the original's, that no other conversation has.
        """

        async def work(session: AsyncSession) -> str:
            original = await visible(session, conversation_id)
            return await duplicate(session, original, titles(original.title))

        return await self._database.write(work)


def _generating(message_id: str) -> Any:
    return update(Message).where(Message.id == message_id, GENERATING)
