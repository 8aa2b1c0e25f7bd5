"""The topics `conversations` and `conversation` as async iterators. Register first, load then: nothing falls between."""

from collections.abc import AsyncGenerator
from typing import Self

from chat.bulletin import Bulletin, Watcher
from chat.conversations import Conversations
from chat.errors import NotFoundError
from chat.events import (
    ConversationChanged,
    ConversationEvent,
    ConversationRemoved,
    ConversationView,
    GenerationEvent,
    ListEvent,
)
from chat.generation import Subscription
from chat.hub import GenerationHub


async def watch_conversations(
    bulletin: Bulletin, conversations: Conversations
) -> AsyncGenerator[ListEvent]:
    """The list's first page, then all changes; a slow reader gets the first page again."""
    with bulletin.watch() as watcher:
        yield await conversations.list()
        while True:
            if watcher.take_overflow():
                watcher.take()
                yield await conversations.list()
            for conversation_id in watcher.take():
                yield await _row(conversations, conversation_id)
            await _wait(watcher)


async def _row(conversations: Conversations, conversation_id: str) -> ListEvent:
    try:
        return ConversationChanged(await conversations.item(conversation_id))
    except NotFoundError:
        return ConversationRemoved(conversation_id)


async def _wait(watcher: Watcher) -> None:
    await watcher.wake.wait()
    watcher.wake.clear()


async def watch_conversation(
    bulletin: Bulletin, conversations: Conversations, hub: GenerationHub, conversation_id: str
) -> AsyncGenerator[ConversationEvent]:
    """A view at first and after every change, between them the events of the running generation.

    A generation's events come before the view that shows its end. Raises NotFoundError at the first step.
    """
    with bulletin.watch(conversation_id) as watcher, _Follower(hub, watcher) as follower:
        view = await conversations.view(conversation_id)
        while view is not None:
            yield view
            follower.follow(view.generation_id)
            while (event := follower.poll()) is not None or not watcher.take():
                if event is not None:
                    yield event
                else:
                    await _wait(watcher)
            view = await _view(conversations, conversation_id)
        yield ConversationRemoved(conversation_id)


async def _view(conversations: Conversations, conversation_id: str) -> ConversationView | None:
    try:
        return await conversations.view(conversation_id)
    except NotFoundError:
        return None


class _Follower:
    """Attached to the generation that runs at the moment, from a snapshot to its end."""

    def __init__(self, hub: GenerationHub, watcher: Watcher) -> None:
        self._hub = hub
        self._watcher = watcher
        self._subscription: Subscription | None = None

    def follow(self, generation_id: str | None) -> None:
        """Attach unless attached already; the last generation has been read to its end by then."""
        if generation_id is not None and self._subscription is None:
            self._subscription = self._hub.attach(generation_id, None, self._watcher.wake)

    def poll(self) -> GenerationEvent | None:
        """The next event, or None when there is none yet."""
        if self._subscription is None:
            return None
        event = self._subscription.poll()
        if self._subscription.is_at_end:
            self._close()
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None
