"""JSON values of what leaves this room and of what is stored: one place for the wire form."""

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

from engine.outputs import KVUsage, Timings, Usage


def to_wire(value: Any) -> Any:
    """JSON values of a frozen dataclass of chat/events.py: names stay, times become ISO 8601."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_wire({name: getattr(value, name) for name in value.__dataclass_fields__})
    if isinstance(value, Mapping):
        return {key: to_wire(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_wire(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value


def usage_json(usage: Usage) -> dict[str, Any]:
    """`usage` as in design and protocol: complete, the total included."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def timings_json(timings: Timings) -> dict[str, Any]:
    return asdict(timings)


def kv_json(kv: KVUsage) -> dict[str, Any]:
    return asdict(kv)
