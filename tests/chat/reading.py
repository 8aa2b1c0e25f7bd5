"""Reading generations to a certain point."""

import json
from typing import Any

from chat.events import Candidate, Delta, Finished, GenerationEvent
from chat.generation import Subscription
from chat.service import ChatService


async def read(subscription: Subscription, count: int) -> list[GenerationEvent]:
    """The next `count` events."""
    return [await anext(subscription) for _ in range(count)]


async def read_to_end(
    chat: ChatService, generation_id: str, from_seq: int = 0
) -> list[GenerationEvent]:
    """Every event from `from_seq` on."""
    with chat.attach(generation_id, from_seq) as subscription:
        return [event async for event in subscription]


def texts(events: list[GenerationEvent]) -> dict[int, str]:
    """Joined deltas by candidate."""
    joined: dict[int, str] = {}
    for event in events:
        if isinstance(event, Delta):
            joined[event.index] = joined.get(event.index, "") + event.text
    return joined


def reasons(events: list[GenerationEvent]) -> dict[int, str]:
    """Finish reasons by candidate."""
    return {e.index: e.finish_reason for e in events if isinstance(e, Candidate)}


def assert_complete(events: list[GenerationEvent]) -> None:
    """Numbered from 0 without gaps, `Finished` last and once."""
    assert [event.seq for event in events] == list(range(len(events)))
    assert [isinstance(e, Finished) for e in events] == [False] * (len(events) - 1) + [True]


async def exported(chat: ChatService, conversation_id: str) -> dict[str, Any]:
    """The document of an export."""
    pieces = await chat.conversations.export_json(conversation_id)
    return json.loads(b"".join([piece async for piece in pieces]))
