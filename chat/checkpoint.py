"""Writes the texts of streaming answers, with their tokens, to the database about once a second, all in one transaction."""

import asyncio
import logging
from collections.abc import Callable

from chat.ports import Clock, Timer
from storage.conversations import ConversationStore
from storage.errors import StorageError
from storage.records import AnswerText

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL = 1.0


class Checkpointer:
    """A text marked changed is stored within CHECKPOINT_INTERVAL; nothing runs while nothing changes."""

    def __init__(self, store: ConversationStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._changed: dict[str, Callable[[], AnswerText]] = {}
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None

    def mark(self, message_id: str, text: Callable[[], AnswerText]) -> None:
        """The message's text has grown; `text` gives it when the time comes."""
        self._changed[message_id] = text
        if self._timer is None:
            self._timer = self._clock.call_later(CHECKPOINT_INTERVAL, self._begin)

    def forget(self, message_id: str) -> None:
        """The message's final state is about to be stored."""
        self._changed.pop(message_id, None)

    async def close(self) -> None:
        """Store what has changed and leave neither timer nor task."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task
        await self._flush()

    async def _flush(self) -> None:
        """A failure is logged, and the next checkpoint tries with longer texts."""
        changed, self._changed = self._changed, {}
        if not changed:
            return
        try:
            await self._store.save_texts({key: text() for key, text in changed.items()})
        except StorageError:
            logger.exception("could not store the texts of %d streaming answers", len(changed))

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._flush()
        self._timer = None
        for message_id, text in list(self._changed.items()):
            self.mark(message_id, text)
