"""Takes fields out of one mapping in wire form, each checked against its range, each refusal naming its path.

Null is the same as absent. Numbers are finite and never booleans; counts are whole numbers.
"""

import json
import math
import reprlib
from collections.abc import Iterable, Mapping

from engine.errors import RequestError


class WireFields:
    """The fields of `mapping`, which stands in the field `path` ("" for a body)."""

    def __init__(self, mapping: Mapping[str, object], path: str) -> None:
        self.prefix = f"{path}." if path else ""
        if not isinstance(mapping, Mapping):
            raise RequestError(f"{path or 'the body'} must be an object", param=path or None)
        self.given = {name: value for name, value in mapping.items() if value is not None}

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        return self.real(name, self.given.get(name, default), low, high)

    def integer(self, name: str, default: int, low: int) -> int:
        """A whole number, `low` or more."""
        return self.whole(name, self.given.get(name, default), low, None)

    def optional_integer(self, name: str, low: int, high: int | None) -> int | None:
        """The same with an upper limit, or None when absent."""
        return self.whole(name, self.given[name], low, high) if name in self.given else None

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.given.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false", value)
        return value

    def real(self, path: str, value: object, low: float, high: float) -> float:
        """`value`, which stands at `path`, as a number in its range."""
        allowed = f"a number from {low:g} to {high:g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(path, allowed, value)
        if not low <= value <= high or math.isnan(value):
            raise self.error(path, allowed, value)
        return float(value)

    def whole(self, path: str, value: object, low: int, high: int | None) -> int:
        """`value`, which stands at `path`, as a whole number in its range."""
        limit = "or more" if high is None else f"to {high}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(path, f"a whole number, {low} {limit}", value)
        if value < low or (high is not None and value > high):
            raise self.error(path, f"a whole number, {low} {limit}", value)
        return value

    def list(self, path: str, value: object, allowed: str) -> list[object]:
        """`value`, which stands at `path`, as a list."""
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise self.error(path, allowed, value)
        return [*value]

    def short_text(self, path: str, value: object, limit: int) -> str:
        """`value`, which stands at `path`, as a text of 1 to `limit` characters."""
        text = self.text(path, value)
        if len(text) > limit:
            raise self.error(path, f"at most {limit} characters", text)
        return text

    def text(self, path: str, value: object) -> str:
        """`value`, which stands at `path`, as a text that is not empty."""
        if not isinstance(value, str) or not value:
            raise self.error(path, "a string that is not empty", value)
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise self.error(path, "text without lone surrogates", value)
        return value

    def error(self, path: str, allowed: str, value: object) -> RequestError:
        """What to raise: the field, the value, what is allowed."""
        param = self.prefix + path
        message = f"{param}: {_shown(value)} is not allowed; {allowed}"
        return RequestError(message, param=param)


def _shown(value: object) -> str:
    """A JSON value, cut short."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return reprlib.repr(value)


def is_one_of(value: object, allowed: tuple[object, ...]) -> bool:
    """Equality that tells booleans from numbers."""
    return any(isinstance(value, bool) == isinstance(a, bool) and value == a for a in allowed)
