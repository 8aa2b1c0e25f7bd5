"""Which conversations have changed: told to every window that watches, without a queue.

A watcher remembers ids, each once, so what waits for a slow reader is bounded; readers load the state when they get
to it, and it is the newest.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

MAX_CHANGES = 256


class Watcher:
    """What one reader has not seen yet. `wake` is set when there is something."""

    def __init__(self, only: str | None) -> None:
        self.only = only
        self.wake = asyncio.Event()
        self._changes: dict[str, None] = {}
        self._has_overflowed = False

    def mark(self, conversation_id: str) -> None:
        """A conversation has changed; too many unread changes become "everything"."""
        if self.only is not None and self.only != conversation_id:
            return
        self._changes[conversation_id] = None
        if len(self._changes) > MAX_CHANGES:
            self._has_overflowed = True
            self._changes.clear()
        self.wake.set()

    def take(self) -> list[str]:
        """The ids changed since the last call, in order."""
        changes = list(self._changes)
        self._changes.clear()
        return changes

    def take_overflow(self) -> bool:
        """Whether more has changed since the last call than ids were kept."""
        overflowed, self._has_overflowed = self._has_overflowed, False
        return overflowed


class Bulletin:
    """All watchers."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()

    def mark(self, conversation_id: str) -> None:
        """Tell every watcher that a conversation has changed."""
        for watcher in self._watchers:
            watcher.mark(conversation_id)

    @contextmanager
    def watch(self, only: str | None = None) -> Iterator[Watcher]:
        """Hear of every conversation, or of one."""
        watcher = Watcher(only)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
