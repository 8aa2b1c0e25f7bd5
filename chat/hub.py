"""The generation hub: generations belong to the server; pages and sockets only subscribe.

One generation per conversation at a time. One that nobody is subscribed to for `orphan_timeout` seconds is aborted
(`interrupted`); one that has finished stays attachable for RETENTION seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from chat.checkpoint import Checkpointer
from chat.errors import ConversationBusyError, UnknownGenerationError
from chat.events import Candidate, Finished
from chat.generation import Generation, Subscription
from chat.patience import Patience
from chat.ports import Clock, Stream, Timer
from chat.run import GenerationRun
from engine.errors import RequestError
from storage.conversations import ConversationStore

logger = logging.getLogger(__name__)

RETENTION = 300.0
ABORT_TIMEOUT = 4.0
CANCEL_TIMEOUT = 1.0


class GenerationHub:
    """All generations that run or have finished lately. `on_change` hears of a conversation that began or ended one."""

    def __init__(
        self,
        store: ConversationStore,
        clock: Clock,
        orphan_timeout: float,
        on_change: Callable[[str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._orphan_timeout = orphan_timeout
        self._on_change = on_change
        self._checkpointer = Checkpointer(store, clock)
        self._generations: dict[str, Generation] = {}
        self._runs: dict[str, GenerationRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running_in: dict[str, str] = {}
        self._reserved: set[str] = set()
        self._orphan_timers: dict[str, Timer] = {}
        self._retention_timers: dict[str, Timer] = {}

    def running_in(self, conversation_id: str) -> str | None:
        """The id of the conversation's running generation."""
        return self._running_in.get(conversation_id)

    @contextmanager
    def reserve(self, conversation_id: str) -> Iterator[None]:
        """Keep generations out of a conversation while a change is prepared. Raises ConversationBusyError."""
        if conversation_id in self._reserved or conversation_id in self._running_in:
            message = "an answer is being written in this conversation; wait for it or stop it"
            raise ConversationBusyError(message, param="conversation_id")
        self._reserved.add(conversation_id)
        try:
            yield
        finally:
            self._reserved.discard(conversation_id)

    def launch(self, generation: Generation, open_stream: Callable[[], Stream]) -> None:
        """Begin a generation whose answers are stored already. It counts as an orphan until someone attaches."""
        generation_id, conversation_id = generation.id, generation.conversation_id
        assert conversation_id not in self._running_in, "the conversation has a generation already"
        run = GenerationRun(generation, open_stream, self._store, self._checkpointer)
        self._generations[generation_id] = generation
        self._runs[generation_id] = run
        self._running_in[conversation_id] = generation_id
        self._tasks[generation_id] = asyncio.create_task(self._run(generation, run))
        self._watch_orphan(generation)
        self._on_change(conversation_id)

    def attach(
        self, generation_id: str, from_seq: int | None, wake: asyncio.Event | None = None
    ) -> Subscription:
        """Read a generation from `from_seq` on, or from a snapshot when it is None. Raises UnknownGenerationError."""
        generation = self._find(generation_id)
        subscription = Subscription(generation, from_seq, self._watch_orphan, wake)
        self._cancel(self._orphan_timers, generation_id)
        return subscription

    def stop(self, generation_id: str, index: int | None = None) -> Candidate | Finished | None:
        """A person ends one candidate or all; what has ended stays as it is, and the event that told so is returned."""
        generation = self._find(generation_id)
        num_candidates = len(generation.message_ids)
        if index is not None and not 0 <= index < num_candidates:
            message = f"index is {index}; the generation has candidates 0 to {num_candidates - 1}"
            raise RequestError(message, param="index")
        if run := self._runs.get(generation_id):
            run.abort("stopped", index)
        return generation.end_of(index)

    async def end(self, conversation_id: str) -> None:
        """Stop what runs in a conversation and return when its end is stored."""
        generation_id = self._running_in.get(conversation_id)
        if generation_id is not None:
            self._runs[generation_id].abort("stopped")
            await asyncio.wait([self._tasks[generation_id]])

    async def shutdown(self, patience: Patience, timeout: float) -> None:
        """Give what runs `timeout` seconds to end, abort the rest (`interrupted`), and leave no task or timer."""
        await patience.wait(set(self._tasks.values()), timeout)
        for run in self._runs.values():
            run.abort("interrupted")
        for task in await _wait(self._tasks.values(), ABORT_TIMEOUT):
            logger.error("a generation did not end when aborted; its text so far is kept")
            task.cancel()
        await _wait(self._tasks.values(), CANCEL_TIMEOUT)
        for timers in (self._orphan_timers, self._retention_timers):
            for generation_id in list(timers):
                self._cancel(timers, generation_id)
        await self._checkpointer.close()

    async def _run(self, generation: Generation, run: GenerationRun) -> None:
        try:
            await run.run()
        finally:
            del self._running_in[generation.conversation_id]
            del self._runs[generation.id]
            del self._tasks[generation.id]
            self._cancel(self._orphan_timers, generation.id)
            self._retention_timers[generation.id] = self._clock.call_later(
                RETENTION, lambda: self._forget(generation)
            )
            generation.publish_finished()
            self._on_change(generation.conversation_id)

    def _find(self, generation_id: str) -> Generation:
        try:
            return self._generations[generation_id]
        except KeyError:
            message = f"there is no generation {generation_id}, or it ended too long ago"
            raise UnknownGenerationError(message, param="generation_id") from None

    def _forget(self, generation: Generation) -> None:
        del self._generations[generation.id]
        del self._retention_timers[generation.id]

    def _watch_orphan(self, generation: Generation) -> None:
        """Start the timer when a running generation has lost its last subscriber, or has none yet."""
        if generation.is_finished or generation.subscriptions:
            return
        self._orphan_timers[generation.id] = self._clock.call_later(
            self._orphan_timeout, lambda: self._abort_orphan(generation.id)
        )

    def _abort_orphan(self, generation_id: str) -> None:
        logger.info("generation %s is aborted: nobody has followed it", generation_id)
        del self._orphan_timers[generation_id]
        self._runs[generation_id].abort("interrupted")

    def _cancel(self, timers: dict[str, Timer], generation_id: str) -> None:
        if timer := timers.pop(generation_id, None):
            timer.cancel()


async def _wait(tasks: Collection[asyncio.Task[None]], timeout: float) -> set[asyncio.Task[None]]:
    """Wait for tasks; returns those still running."""
    running = set(tasks)
    if not running:
        return running
    return (await asyncio.wait(running, timeout=timeout))[1]
