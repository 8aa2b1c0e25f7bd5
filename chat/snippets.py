"""The part of a text where searched words stand, with the words marked: what a list of hits shows."""

import re
from collections.abc import Sequence

LENGTH = 160
BEFORE = 40
_DIRECTIONS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def snippet(text: str, words: Sequence[str]) -> tuple[str, ...]:
    """One line of at most about LENGTH characters around the first word, cut into texts that alternate: outside, hit, outside, ...

    Marks that turn the direction of writing are left out: they would reach beyond the line.
    """
    pattern = re.compile("|".join(map(re.escape, _longest_first(words))), re.IGNORECASE)
    first = pattern.search(text)
    place = first.start() if first else 0
    start, end = _window(text, place)
    piece = _DIRECTIONS.sub("", text[start:end])
    line = " ".join(piece.split())
    line = f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"
    return _alternate(line, pattern)


def _longest_first(words: Sequence[str]) -> list[str]:
    return sorted(words, key=len, reverse=True)


def _window(text: str, place: int) -> tuple[int, int]:
    """From some words before `place`; a word is not cut at the beginning, where one ends nearby."""
    start = max(0, place - BEFORE)
    if start:
        space = text.find(" ", start, place)
        start = space + 1 if space >= 0 else start
    return start, min(len(text), start + LENGTH)


def _alternate(line: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    parts: list[str] = []
    position = 0
    for match in pattern.finditer(line):
        parts += [line[position : match.start()], match.group()]
        position = match.end()
    return (*parts, line[position:])
