"""Shorthand for turns, so that a test shows only what it is about."""

from typing import Any

from storage.records import NewTurn


def new_turn(content: str | None = "hello", **changes: Any) -> NewTurn:
    values: dict[str, Any] = {
        "conversation_id": None,
        "title": "hello",
        "parent_id": None,
        "content": content,
        "generation_id": "g1",
        "seeds": (None,),
        "sampling": {"temperature": 0.8},
    }
    return NewTurn(**values | changes)
