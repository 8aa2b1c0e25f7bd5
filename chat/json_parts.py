"""JSON that is written in parts, so that a document of megabytes holds up nobody: neither while it is made nor while it is sent.

A call that encodes holds the event loop, in whichever thread it runs, as it lets no other Python run meanwhile. So what a
document has many of is encoded some at a time: when it comes (`JsonList`), or in another thread (`written_list`).
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic_core import to_json

Part = bytes | bytearray
ITEMS_AT_A_TIME = 32
BYTES_AT_A_TIME = 2**16


@dataclass(frozen=True, slots=True)
class Written:
    """A JSON value that is written already, or is written while its parts are read."""

    parts: Iterable[Part]


class JsonList:
    """A list whose items are written when they come; it holds their text, not them."""

    def __init__(self) -> None:
        self._text = bytearray()

    def extend(self, items: Sequence[Any]) -> None:
        """Append items."""
        if items:
            self._text += b"," if self._text else b""
            self._text += to_json(items)[1:-1]

    def written(self, *others: "JsonList") -> Written:
        """The list, with the items of others behind its own."""
        texts = [each._text for each in (self, *others) if each._text]
        separated = [part for text in texts for part in (b",", text)][1:]
        return Written([b"[", *separated, b"]"])


async def written_list(items: Iterable[Any]) -> Written:
    """A list of what to_json takes, made and written in another thread."""
    return Written(await asyncio.to_thread(lambda: list(list_parts(items))))


def parts_of(value: Any) -> Iterator[Part]:
    """A document's text. What is `Written` may stand in objects and lists, which are short, at any depth."""
    match value:
        case Written():
            yield from value.parts
        case dict():
            yield b"{"
            for number, (name, item) in enumerate(value.items()):
                yield (b"," if number else b"") + to_json(name) + b":"
                yield from parts_of(item)
            yield b"}"
        case list():
            yield b"["
            for number, item in enumerate(value):
                yield b"," if number else b""
                yield from parts_of(item)
            yield b"]"
        case _:
            yield to_json(value)


def list_parts(items: Iterable[Any]) -> Iterator[Part]:
    """The text of a list, written while it is read."""
    iterator, before = iter(items), b"["
    while some := list(islice(iterator, ITEMS_AT_A_TIME)):
        yield before + to_json(some)[1:-1]
        before = b","
    yield b"[]" if before == b"[" else b"]"


def portions(parts: Iterable[Part]) -> Iterator[bytes]:
    """The same text in pieces of about BYTES_AT_A_TIME: each is a system call for who sends it."""
    held = bytearray()
    for part in parts:
        for start in range(0, len(part), BYTES_AT_A_TIME):
            held += memoryview(part)[start : start + BYTES_AT_A_TIME]
            if len(held) >= BYTES_AT_A_TIME:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)
