"""How many requests may wait: those that were submitted and have not begun, and those about to be submitted.

Counted by the event loop at the moment of submission, so a burst cannot overshoot. What has begun once waits no more, also
when it is preempted: it will be served.
"""

from collections.abc import Callable

from engine.errors import OverloadedError


class WaitingRoom:
    """Takes keys until `limit` of them are there; a limit of 0 is none."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: set[object] = set()

    def enter(self, key: object) -> None:
        """Raises OverloadedError when the room is full."""
        if self._limit and len(self._waiting) >= self._limit:
            raise OverloadedError(
                f"{len(self._waiting)} requests are waiting, and no more than {self._limit} may (--max-waiting); try again later"
            )
        self._waiting.add(key)

    def leave(self, key: object) -> None:
        """Begun, ended or given up; unknown keys are ignored."""
        self._waiting.discard(key)

    def keep_place(self) -> Callable[[], None]:
        """Take a place for a request that is yet to come; the function returned gives it back. Raises OverloadedError."""
        key = object()
        self.enter(key)
        return lambda: self.leave(key)
