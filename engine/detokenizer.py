"""One sequence's tokens to text, as they come: whole characters only, and nothing of a stop string.

`Detokenizer` joins the tokens' true bytes: the concatenation of what it returns is the decoding of all of them.
`StopMatcher` looks for stop strings in that text. Both cost O(new text), whatever came before.
"""

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


class Detokenizer:
    """Bytes of a character that is not complete are held back. `bytes_of` gives a token's bytes, b"" to hide it."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def is_whole(self) -> bool:
        """Whether nothing is held back."""
        return not self._decoder.getstate()[0]

    def push(self, token_id: int) -> str:
        """The text that has become certain."""
        return self._decoder.decode(self._bytes_of(token_id))

    def flush(self) -> str:
        """What is held at the end: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class TokenText:
    """What one token adds to a text that streams. `is_whole`: the text up to it ends with a whole character."""

    text: str
    is_whole: bool


def token_texts(token_ids: Iterable[int], bytes_of: Callable[[int], bytes]) -> list[TokenText]:
    """The tokens' texts: joined, with nothing of a character that is not complete, they are the decoding of all."""
    detokenizer = Detokenizer(bytes_of)
    return [TokenText(detokenizer.push(i), detokenizer.is_whole) for i in token_ids]


class StopMatcher:
    """Finds the stop string whose match ends first; of those that end at one character, the longest.

    The result is the same however the text is cut into pieces. Only a proper prefix of a stop string is held back.
    """

    def __init__(self, patterns: Sequence["StopPattern"]) -> None:
        """`patterns` come from `compile_stops`; they are shared by all candidates of a request."""
        self._patterns = patterns
        self._lengths = [0] * len(patterns)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that may be shown. After a match, nothing more is."""
        if not self._patterns:
            return text
        if self.matched is not None:
            return ""
        self._held += text
        for position in range(len(self._held) - len(text), len(self._held)):
            stop = self._advance(self._held[position])
            if stop is not None:
                self.matched = stop
                return self._take(position + 1 - len(stop))
        return self._take(len(self._held) - max(self._lengths))

    def flush(self) -> str:
        """What is held, when no more text comes."""
        return "" if self.matched is not None else self._take(len(self._held))

    def _advance(self, char: str) -> str | None:
        """Take in a character; the longest stop string that the text now ends with."""
        found = None
        for i, pattern in enumerate(self._patterns):
            self._lengths[i] = pattern.extend(self._lengths[i], char)
            if found is None and self._lengths[i] == len(pattern.stop):
                found = pattern.stop
        return found

    def _take(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        return shown


class StopPattern:
    """A stop string with the border table of Knuth, Morris and Pratt. Immutable."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self._borders = [0, 0]
        for char in stop[1:]:
            self._borders.append(self.extend(self._borders[-1], char))

    def extend(self, length: int, char: str) -> int:
        """How much of `stop` a text ends with, after a character more than when it was `length`, which is no match."""
        while length and self.stop[length] != char:
            length = self._borders[length]
        return length + (self.stop[length] == char)


def compile_stops(stops: Sequence[str]) -> tuple[StopPattern, ...]:
    """Patterns of stop strings, longest first."""
    return tuple(StopPattern(stop) for stop in sorted(set(stops), key=len, reverse=True))
