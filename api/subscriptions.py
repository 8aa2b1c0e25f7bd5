"""What one client listens to: generations it is attached to, and topics. Each runs in a task that feeds its outbox."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from api.context import ApiContext
from api.frames import EVENT_TYPES, RequestId, Subscribe, Topic, frame_text
from api.lanes import Lane, RenderLane
from api.outbox import Outbox
from api.rendering import Rendering
from chat.events import (
    ConversationEvent,
    ConversationRemoved,
    ConversationView,
    Delta,
    Finished,
    GenerationEvent,
    ListEvent,
)
from chat.generation import Subscription
from chat.wire import to_wire
from engine.errors import RequestError

RENDER_INTERVAL_S = 1 / 12
REMEMBERED_GENERATIONS = 64

Key = tuple[str, str | None]
T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, None]]


class Subscriptions:
    """One client's lanes and topics. `order` is held while frames that belong together are put."""

    def __init__(self, context: ApiContext, outbox: Outbox, rendering: Rendering | None) -> None:
        self._chat, self._topics = context.chat, context.topics
        self._outbox, self._rendering = outbox, rendering
        self.order = asyncio.Lock()
        self._lanes: dict[str, Lane] = {}
        self._ended: deque[str] = deque(maxlen=REMEMBERED_GENERATIONS)
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._stale = asyncio.Event()
        if rendering:
            self._spawn(("renders", None), self._flush_renders)

    async def aclose(self) -> None:
        """End every task."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def attach(self, generation_id: str, from_seq: int) -> None:
        """Replay a generation from `from_seq` and follow it. Call with `order` held.

        A page always gets the whole text again, after a snapshot that clears what it shows. Raises
        UnknownGenerationError.
        """
        first = 0 if self._rendering else from_seq
        subscription = self._chat.attach(generation_id, first)
        self._lanes[generation_id] = lane = self._new_lane(generation_id, first, attached=True)
        if from_seq and isinstance(lane, RenderLane):
            await lane.reset()
        task = self._spawn(("generation", generation_id), lambda: self._follow(subscription, lane))
        task.add_done_callback(lambda _: subscription.close())

    def watch(self, frame: Subscribe) -> None:
        """Start a topic, or start it again from its snapshot. Raises RequestError."""
        if (frame.id is None) is (frame.topic == "conversation"):
            text = "name a conversation" if frame.id is None else "only topic conversation has one"
            raise RequestError(f"id: {text}", param="id")
        match frame.topic:
            case "conversation":
                feed = partial(self._feed_conversation, frame.id or "")
            case "conversations":
                feed = self._feed_list
            case topic:
                feed = partial(self._feed_poll, topic)
        self._spawn((frame.topic, frame.id), feed, frame.request_id)

    def unwatch(self, topic: Topic, topic_id: str | None) -> None:
        """End a topic; one that is not watched is no error."""
        task = self._tasks.pop((topic, topic_id), None)
        if task:
            task.cancel()

    # --- tasks -------------------------------------------------------------------------------

    def _spawn(self, key: Key, work: Work, request_id: RequestId = None) -> asyncio.Task[None]:
        previous = self._tasks.get(key)
        if previous:
            previous.cancel()
        task = self._tasks[key] = asyncio.create_task(self._guard(key, work, request_id))
        return task

    async def _guard(self, key: Key, work: Work, request_id: RequestId) -> None:
        try:
            await work()
        except Exception as error:
            named = {"generation_id": str(key[1])} if key[0] == "generation" else {}
            await self._outbox.put_error(error, request_id, **named)
        finally:
            if self._tasks.get(key) is asyncio.current_task():
                del self._tasks[key]

    async def _follow(self, subscription: Subscription, lane: Lane) -> None:
        async for event in subscription:
            async with self.order:
                await self._pass_on(lane, event)

    async def _feed_list(self) -> None:
        async def pass_on(event: ListEvent) -> None:
            await self._outbox.put_frame(EVENT_TYPES[type(event)], to_wire(event))

        await _feed(self._chat.watch_conversations(), pass_on)

    async def _feed_conversation(self, conversation_id: str) -> None:
        async def pass_on(event: ConversationEvent) -> None:
            async with self.order:
                await self._pass_conversation_event(event)

        await _feed(self._chat.watch_conversation(conversation_id), pass_on)

    async def _feed_poll(self, topic: str) -> None:
        await _feed(self._topics.polls[topic].changes(), self._outbox.put)

    async def _flush_renders(self) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            async with self.order:
                for lane in list(self._lanes.values()):
                    await lane.flush()
            await asyncio.sleep(RENDER_INTERVAL_S)

    # --- events ------------------------------------------------------------------------------

    async def _pass_conversation_event(self, event: ConversationEvent) -> None:
        match event:
            case ConversationView():
                await self._outbox.put(await asyncio.to_thread(self._view_frame, event))
            case ConversationRemoved():
                await self._outbox.put_frame("conversation_removed", to_wire(event))
            case _ if event.generation_id not in self._ended:
                lane = self._lanes.get(event.generation_id)
                if lane is None:
                    lane = self._new_lane(event.generation_id, -1, attached=False)
                    self._lanes[event.generation_id] = lane
                if not lane.attached:
                    await self._pass_on(lane, event)

    async def _pass_on(self, lane: Lane, event: GenerationEvent) -> None:
        await lane.pass_on(event)
        if isinstance(event, Delta):
            self._stale.set()
        if isinstance(event, Finished) and self._lanes.get(lane.generation_id) is lane:
            del self._lanes[lane.generation_id]
            self._ended.append(lane.generation_id)

    def _new_lane(self, generation_id: str, from_seq: int, *, attached: bool) -> Lane:
        if self._rendering is None:
            return Lane(generation_id, self._outbox.put, from_seq, attached=attached)
        return RenderLane(
            generation_id, self._outbox.put, from_seq, attached=attached, rendering=self._rendering
        )

    def _view_frame(self, view: ConversationView) -> str:
        """Made in another thread, as a path may be long."""
        fields = to_wire(view)
        if self._rendering:
            for message in (*fields["messages"], *fields["candidates"]):
                message["html"] = self._rendering.render(message["content"])
        return frame_text("conversation", fields)


async def _feed(events: AsyncIterator[T], pass_on: Callable[[T], Awaitable[None]]) -> None:
    """Pass on every event; the iterator is closed when this ends, however it ends."""
    try:
        async for event in events:
            await pass_on(event)
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
