"""One sequence's tokens to text, as they come: whole characters only, and nothing of a stop string.

`Detokenizer` joins the tokens' true bytes: the concatenation of what it returns is the decoding of all of them.
`StopMatcher` looks for stop strings in that text. Both cost O(new text), whatever came before.
"""

import codecs
from collections.abc import Callable, Sequence


class Detokenizer:
    """Bytes of a character that is not complete are held back. `bytes_of` gives a token's bytes, b"" to hide it."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that has become certain."""
        return self._decoder.decode(self._bytes_of(token_id))

    def flush(self) -> str:
        """What is held at the end: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


class StopMatcher:
    """Finds the stop string whose match ends first; of those that end at one character, the longest.

    The result is the same however the text is cut into pieces. Only a proper prefix of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [_Pattern(stop) for stop in sorted(set(stops), key=len, reverse=True)]
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
            # Every pattern must see the character, so this is no generator expression inside next().
            full = [p.stop for p in self._patterns if p.advance(self._held[position])]
            if full:
                self.matched = full[0]
                return self._take(position + 1 - len(full[0]))
        return self._take(len(self._held) - max(p.length for p in self._patterns))

    def flush(self) -> str:
        """What is held, when no more text comes."""
        return "" if self.matched is not None else self._take(len(self._held))

    def _take(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        return shown


class _Pattern:
    """The automaton of Knuth, Morris and Pratt: `length` is how much of `stop` the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self.stop, self.length = stop, 0
        self._borders = [0, 0]
        for char in stop[1:]:
            self._borders.append(self._extend(self._borders[-1], char))

    def advance(self, char: str) -> bool:
        """Take in a character; True when the text now ends with the whole stop string."""
        self.length = self._extend(self.length, char)
        return self.length == len(self.stop)

    def _extend(self, length: int, char: str) -> int:
        while length and self.stop[length] != char:
            length = self._borders[length]
        return length + (self.stop[length] == char)
