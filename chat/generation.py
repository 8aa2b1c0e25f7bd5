"""A generation as its subscribers see it: texts, numbered events, and cursors that read them.

The events of a generation lie once, in a bounded buffer. A subscriber is a position in it, so it has no queue that
could grow: when what it should read next has left the buffer, it gets a `Snapshot` instead and goes on behind it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

from chat.events import Candidate, Delta, Finished, GenerationEvent, Progress, Snapshot
from engine.errors import RequestError
from storage.records import NOTHING, AnswerText

BUFFER_EVENTS = 1024


class Generation:
    """The state that a generation shows. Only its run (chat/run.py) and the hub publish.

    Each answer starts as `beginning`, which no event tells: readers learn of it by a `Snapshot`.
    """

    def __init__(
        self,
        generation_id: str,
        conversation_id: str,
        message_ids: tuple[str, ...],
        beginning: AnswerText = NOTHING,
    ) -> None:
        self.id = generation_id
        self.conversation_id = conversation_id
        self.message_ids = message_ids
        self.beginning = beginning
        self.candidates: dict[int, Candidate] = {}
        self.next_seq = 0
        self.is_finished = False
        self.subscriptions: set[Subscription] = set()
        self._texts = [[beginning.content] for _ in message_ids]
        self._token_ids = [list(beginning.token_ids) for _ in message_ids]
        self._events: deque[GenerationEvent] = deque(maxlen=BUFFER_EVENTS)

    @property
    def first_seq(self) -> int:
        """The oldest event that can still be replayed."""
        return self.next_seq - len(self._events)

    def text(self, index: int) -> str:
        """A candidate's text so far."""
        parts = self._texts[index]
        parts[:] = ["".join(parts)]
        return parts[0]

    def answer(self, index: int) -> AnswerText:
        """What is to be stored of a candidate now."""
        return AnswerText(self.text(index), tuple(self._token_ids[index]))

    def event(self, seq: int) -> GenerationEvent:
        """An event in the buffer."""
        return self._events[seq - self.next_seq]

    def end_of(self, index: int | None) -> Candidate | Finished | None:
        """The event that told of a candidate's end, or of the end of all; None before it."""
        if index is not None:
            return self.candidates.get(index)
        return Finished(self.id, self.next_seq - 1) if self.is_finished else None

    def opening(self) -> Snapshot:
        """How things stood before the first event."""
        return Snapshot(self.id, -1, (self.beginning.content,) * len(self.message_ids), ())

    def snapshot(self) -> Snapshot:
        """Everything published so far in one piece, `Finished` excepted: it still follows."""
        texts = tuple(self.text(index) for index in range(len(self.message_ids)))
        candidates = tuple(self.candidates[index] for index in sorted(self.candidates))
        last_seq = self.next_seq - 1 - self.is_finished
        return Snapshot(self.id, last_seq, texts, candidates)

    def publish_progress(self, computed_tokens: int, prompt_tokens: int) -> None:
        self._publish(Progress(self.id, self.next_seq, computed_tokens, prompt_tokens))

    def add_tokens(self, index: int, token_ids: Sequence[int]) -> None:
        """Before their text, if they add any, is published."""
        self._token_ids[index] += token_ids

    def publish_delta(self, index: int, text: str) -> None:
        self._texts[index].append(text)
        self._publish(Delta(self.id, self.next_seq, index, text))

    def publish_candidate(self, candidate: Candidate) -> None:
        """`candidate.seq` is `next_seq`."""
        self.candidates[candidate.index] = candidate
        self._publish(candidate)

    def publish_finished(self) -> None:
        self.is_finished = True
        self._publish(Finished(self.id, self.next_seq))

    def _publish(self, event: GenerationEvent) -> None:
        self._events.append(event)
        self.next_seq += 1
        for subscription in self.subscriptions:
            subscription.wake.set()


class Subscription:
    """One reader of a generation: iterate it, or `poll` it whenever `wake` is set. Ends after `Finished`.

    `with` or `close` detaches; a generation that nobody is attached to becomes an orphan.
    """

    def __init__(
        self,
        generation: Generation,
        from_seq: int | None,
        on_close: Callable[[Generation], None],
        wake: asyncio.Event | None = None,
    ) -> None:
        """Read from `from_seq` on, or a snapshot first when it is None. `wake` may be shared between readers.

        Where answers have a beginning, a snapshot of it comes before the first event.
        """
        if from_seq is not None and not 0 <= from_seq <= generation.next_seq:
            message = f"from_seq is {from_seq}; 0 to {generation.next_seq} is possible"
            raise RequestError(message, param="from_seq")
        self.wake = wake or asyncio.Event()
        self._generation = generation
        self._position = from_seq
        self._needs_opening = from_seq == 0 and bool(generation.beginning.content)
        self._on_close = on_close
        generation.subscriptions.add(self)
        self.wake.set()

    @property
    def generation_id(self) -> str:
        return self._generation.id

    @property
    def is_at_end(self) -> bool:
        """Whether `Finished` has been read."""
        return self._generation.is_finished and self._position == self._generation.next_seq

    def poll(self) -> GenerationEvent | None:
        """The next event, or None when there is none yet."""
        generation = self._generation
        if self._needs_opening and generation.first_seq == 0:
            self._needs_opening = False
            return generation.opening()
        if self._position is None or self._position < generation.first_seq:
            snapshot = generation.snapshot()
            self._position = snapshot.seq + 1
            return snapshot
        if self._position == generation.next_seq:
            return None
        event = generation.event(self._position)
        self._position += 1
        return event

    def close(self) -> None:
        """Detach. Idempotent."""
        if self in self._generation.subscriptions:
            self._generation.subscriptions.discard(self)
            self._on_close(self._generation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenerationEvent:
        while (event := self.poll()) is None:
            if self.is_at_end:
                raise StopAsyncIteration
            self.wake.clear()
            await self.wake.wait()
        return event
