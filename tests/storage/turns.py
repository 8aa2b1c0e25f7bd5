"""Shorthand for turns, so that a test shows only what it is about."""

from typing import Any

from storage.records import NewAnswer, NewTurn


def new_turn(content: str | None = "hello", **changes: Any) -> NewTurn:
    seeds: tuple[int | None, ...] = changes.pop("seeds", (None,))
    values: dict[str, Any] = {
        "conversation_id": None,
        "title": "hello",
        "parent_id": None,
        "content": content,
        "generation_id": "g1",
        "answers": tuple(NewAnswer(seed, {"temperature": 0.8}) for seed in seeds),
        "model": "fake",
    }
    return NewTurn(**values | changes)
