"""Reads a JSON document of many megabytes while others go on. For a thread beside the event loop's.

One call that parses all of it would hold the event loop for as long, from whichever thread, as it lets no other Python run. So
objects and lists are walked down to where those of an export have become small, and each value there is parsed by itself. Lists
of numbers, as prompts of token ids are, are parsed some thousands of characters at a time.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any, NoReturn

from api.json_values import may_overflow, parse_json
from engine.errors import RequestError

DEPTH = 5
MOST_VALUES = 4_000_000
"""Values that are read one by one, at most: an export as large as may be imported has fewer."""
PARSED_AT_ONCE = 1 << 20
"""Bytes of a faulty body of which the one parser may still say what is wrong, in the words that it has for all bodies."""
NUMBERS_AT_ONCE = 1 << 15
"""Characters of a list of numbers."""
_NUMBERS = re.compile(r"[-+0-9.eE, \t\n\r]*")
_SPACE = re.compile(r"[ \t\n\r]*")
_HALF_PAIRS = (b"\\ud", b"\\uD")


def parse_large_json(body: bytes) -> object:
    """What `parse_json` gives. Raises RequestError as it does, of a large body in other words."""
    is_suspect = may_overflow(body) or any(each in body for each in _HALF_PAIRS)
    try:
        return _Walk(body.removeprefix(BOM_UTF8).decode(), is_suspect=is_suspect).read()
    except (ValueError, RecursionError, RequestError) as error:
        if len(body) <= PARSED_AT_ONCE:
            return parse_json(body)
        if isinstance(error, RequestError):
            raise
        message = f"the body is not JSON: {error}"
        raise RequestError(message, param=None, code="invalid_json") from None


def take_apart(value: Any, depth: int = DEPTH) -> None:
    """Empty a parsed document piece by piece: to let go of all of it at once would take as long as to parse it so."""
    while isinstance(value, list | dict) and value and depth:
        item = value.pop() if isinstance(value, list) else value.popitem()[1]
        take_apart(item, depth - 1)


class _Walk:
    """One document. What is suspect is parsed a second time, by the stricter parser. Raises ValueError, RequestError."""

    def __init__(self, text: str, *, is_suspect: bool) -> None:
        self._text, self._is_suspect = text, is_suspect
        self._parse = json.JSONDecoder(parse_constant=_refuse).raw_decode
        self._end = 0
        """Behind the value that was read last."""
        self._num_values = 0

    def read(self) -> object:
        """The document's value."""
        value = self._value(self._skip(0), DEPTH)
        if self._skip(self._end) != len(self._text):
            raise ValueError("more than one value")
        return value

    def _value(self, start: int, depth: int) -> object:
        first = self._text[start : start + 1] if depth else ""
        if first == "[":
            return self._list(start, depth - 1)
        return self._object(start, depth - 1) if first == "{" else self._small(start)

    def _list(self, start: int, depth: int) -> list[Any]:
        match = _NUMBERS.match(self._text, start + 1)
        assert match is not None, "no numbers match too"
        if (
            match.end() - start > NUMBERS_AT_ONCE
            and self._text[match.end() : match.end() + 1] == "]"
        ):
            return self._numbers(start + 1, match.end())
        return [self._value(place, depth) for place in self._items(start, "]")]

    def _numbers(self, start: int, end: int) -> list[Any]:
        """What stands between the brackets of a list that has nothing but numbers."""
        found: list[Any] = []
        while start <= end:
            comma = self._text.find(",", start + NUMBERS_AT_ONCE, end)
            stop = end if comma < 0 else comma
            numbers = self._parse_list(f"[{self._text[start:stop]}]")
            if not numbers:
                raise ValueError("a comma without a number")
            self._count(len(numbers))
            found += numbers
            start = stop + 1
        self._end = end + 1
        return found

    def _parse_list(self, text: str) -> Any:
        return parse_json(text.encode()) if self._is_suspect else self._parse(text, 0)[0]

    def _object(self, start: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for place in self._items(start, "}"):
            name = self._small(place)
            colon = self._skip(self._end)
            if not isinstance(name, str) or self._text[colon : colon + 1] != ":":
                raise ValueError("a field without a name")
            found[name] = self._value(self._skip(colon + 1), depth)
        return found

    def _items(self, start: int, closing: str) -> Iterator[int]:
        """Where each item of an object or a list begins. The reader reads it, which moves `_end`, before it asks for the next."""
        place = self._skip(start + 1)
        separator = self._text[place : place + 1]
        while separator != closing:
            self._count(1)
            yield place
            place = self._skip(self._end)
            separator = self._text[place : place + 1]
            if separator not in (",", closing):
                raise ValueError("items without a comma")
            if separator == ",":
                place = self._skip(place + 1)
        self._end = place + 1

    def _count(self, num_values: int) -> None:
        self._num_values += num_values
        if self._num_values > MOST_VALUES:
            message = f"the body has more than {MOST_VALUES:,} values"
            raise RequestError(message, param=None, code="invalid_json")

    def _small(self, start: int) -> object:
        value, self._end = self._parse(self._text, start)
        if self._is_suspect:
            return parse_json(self._text[start : self._end].encode())
        return value

    def _skip(self, place: int) -> int:
        """Where the next character stands that is no space."""
        match = _SPACE.match(self._text, place)
        assert match is not None, "no spaces match too"
        return match.end()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
