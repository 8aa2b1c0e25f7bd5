"""What happened to one request, in order: a bounded list that costs an append per event and nothing per token.

Chunks and blocks come as often as a request is long; whenever the list is full, every second of those is dropped and from
then on only every second is kept, so the curve of held blocks keeps its shape. If that is not enough (a request that is
preempted over and over), the middle goes.
"""

from dataclasses import dataclass
from typing import Literal

MAX_EVENTS = 256

EventKind = Literal[
    "queued",
    "started",
    "chunk",
    "fork",
    "first_token",
    "block",
    "copy_on_write",
    "preempted",
    "resumed",
    "end",
]
FREQUENT = ("chunk", "block")


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """`time_s` is seconds since arrival, `num_blocks` what the whole request held then, each block once.

    `num_tokens` is, for started and resumed: found in the prefix cache; chunk: computed in it; block: stored so far; end:
    tokens of the answer. `reason` says how a candidate ended.
    """

    time_s: float
    kind: EventKind
    index: int
    num_tokens: int
    num_blocks: int
    reason: str | None = None


class Timeline:
    """The events of one request."""

    def __init__(self) -> None:
        self.events: list[RequestEvent] = []
        self._stride, self._num_frequent = 1, 0

    @property
    def last_s(self) -> float:
        """When the last event was."""
        return self.events[-1].time_s if self.events else 0.0

    def add(self, event: RequestEvent) -> None:
        """Append, unless it is one of those that are too many; makes room when the list is full."""
        if event.kind in FREQUENT:
            self._num_frequent += 1
            if self._num_frequent % self._stride:
                return
        if len(self.events) >= MAX_EVENTS:
            self._thin()
        self.events.append(event)

    def _thin(self) -> None:
        self._stride *= 2
        kept = [e for i, e in enumerate(self.events) if e.kind not in FREQUENT or i % 2]
        if len(kept) > MAX_EVENTS * 3 // 4:
            del kept[MAX_EVENTS // 4 : MAX_EVENTS // 2]
        self.events = kept
