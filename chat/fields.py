"""Typed access to the objects of a file that somebody hands in: what is wrong is said with the place, as `[3].mapping.a.parent`."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from chat.texts import check_pairs, without_nul
from engine.errors import RequestError

_LAST_SECOND = 253_402_300_799  # of the year 9999


class Fields:
    """One JSON object at `path`, which is empty for the whole document. An absent field reads as null."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            raise RequestError(f"{path or 'the document'} must be an object", param=path or None)
        self._value = value
        self.path = path

    def error(self, name: str, allowed: str) -> RequestError:
        """A complaint about a field."""
        param = self.path_of(name)
        return RequestError(f"{param} {allowed}", param=param)

    def path_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        return name in self._value

    def get(self, name: str) -> Any:
        return self._value.get(name)

    def child(self, name: str) -> "Fields":
        """A field that is an object."""
        return Fields(self.get(name), self.path_of(name))

    def children(self, name: str) -> dict[str, "Fields"]:
        """A field that is an object of objects."""
        path = self.path_of(name)
        return {
            key: Fields(value, f"{path}.{key}") for key, value in self.child(name)._value.items()
        }

    def objects(self, name: str) -> list["Fields"]:
        """A field that is a list of objects."""
        path = self.path_of(name)
        return [Fields(value, f"{path}[{i}]") for i, value in enumerate(self.items(name))]

    def items(self, name: str) -> list[Any]:
        value = self.get(name)
        if not isinstance(value, list):
            raise self.error(name, "must be a list")
        return value

    def texts(self, name: str) -> list[str]:
        """A field that is a list of texts."""
        values = self.items(name)
        for position, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(f"{name}[{position}]", "must be a text")
        return values

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise self.error(name, "must be a text")
        check_pairs(value, self.path_of(name))
        return without_nul(value)

    def optional_text(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def integer(self, name: str, limit: int) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < limit:
            raise self.error(name, f"must be a whole number from 0 to {limit - 1}")
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, "must be an object")
        return value

    def choice(self, name: str, allowed: tuple[Any, ...]) -> Any:
        value = self.get(name)
        if not any(value == each and type(value) is type(each) for each in allowed):
            listed = ", ".join(repr(each) for each in allowed)
            raise self.error(name, f"must be one of {listed}")
        return value

    def reference(self, name: str, positions: Mapping[str, int]) -> int | None:
        """The position of the message that a field names; only earlier messages are known."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in positions:
            raise self.error(name, "must name a message that comes earlier")
        return positions[value]

    def seconds(self, name: str) -> datetime | None:
        """A time in seconds since 1970."""
        value = self.get(name)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not 0 <= value <= _LAST_SECOND:
            raise self.error(name, "must be a time in seconds since 1970")
        return datetime.fromtimestamp(value, UTC)

    def time(self, name: str) -> datetime | None:
        """A time as ISO 8601, in UTC unless it says otherwise."""
        value = self.optional_text(name)
        if value is None:
            return None
        try:
            time = datetime.fromisoformat(value)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (ValueError, OverflowError):
            raise self.error(name, "must be a time as 2030-01-31T12:00:00+00:00") from None
