"""Guesses how a text goes on: the way it went on where its last tokens stood in it before. No model, no tensors.

This is prompt lookup (Saxena 2023), also known as n-gram speculation: what quotes, edits or repeats its context is guessed
well. Of the places where the last two tokens stood, the one counts that agrees with the text for the longest.

How often guesses come true is learned from the text itself, for each length of agreement, also from guesses that nobody
computed: `guess` compares the last one with the tokens that came.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST_MATCH, LONGEST_MATCH = 2, 8
MAX_PLACES = 8
"""Of the places of a pair of tokens only the latest are kept."""

PRIOR_SHARE = {2: 0.2, 3: 0.4, 4: 0.5, 5: 0.6, 6: 0.7, 7: 0.75, 8: 0.8}
PRIOR_WEIGHT = 2.0
MEMORY = 0.9
"""What a record keeps of its counts with each guess: it forgets with a half-life of about seven."""


@dataclass(slots=True)
class _Record:
    """How many guessed tokens came true, and how many were put to the test. A guess ends with the first wrong one."""

    num_true: float
    num_tested: float

    def note(self, num_true: int, num_tested: int) -> None:
        self.num_true = MEMORY * self.num_true + num_true
        self.num_tested = MEMORY * self.num_tested + num_tested

    @property
    def share(self) -> float:
        return self.num_true / self.num_tested


@dataclass(frozen=True, slots=True)
class Guess:
    """The tokens that may follow, and the chance (0 to 1) that one comes true if all before it did."""

    token_ids: Sequence[int]
    chance: float


NO_GUESS = Guess((), 0.0)


class PromptLookup:
    """What is known of one text, which only ever grows."""

    def __init__(self) -> None:
        self._places: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._num_indexed = 1
        self._records = {
            length: _Record(share * PRIOR_WEIGHT, PRIOR_WEIGHT)
            for length, share in PRIOR_SHARE.items()
        }
        self._last: tuple[int, Guess, _Record] | None = None

    def guess(self, token_ids: Sequence[int], limit: int) -> Guess:
        """Up to `limit` tokens that may follow `token_ids`, which begin with those of the last call."""
        self._learn(token_ids)
        self._index(token_ids)
        place, length = self._find(token_ids)
        if not length:
            return NO_GUESS
        record = self._records[length]
        guess = Guess(_repeat(token_ids[place : place + limit], limit), record.share)
        self._last = (len(token_ids), guess, record)
        return guess

    def _learn(self, token_ids: Sequence[int]) -> None:
        if self._last is None:
            return
        start, guess, record = self._last
        came = token_ids[start : start + len(guess.token_ids)]
        if came:
            num_true = num_equal(guess.token_ids, came)
            record.note(num_true, min(num_true + 1, len(came)))
            self._last = None

    def _index(self, token_ids: Sequence[int]) -> None:
        """Note where each pair of tokens leads to; the last pair leads nowhere yet."""
        for end in range(self._num_indexed + 1, len(token_ids)):
            places = self._places[token_ids[end - 2], token_ids[end - 1]]
            places.append(end)
            if len(places) > MAX_PLACES:
                del places[0]
        self._num_indexed = max(self._num_indexed, len(token_ids) - 1)

    def _find(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """The latest place that the longest agreement leads to, and its length; (0, 0) without one."""
        best, longest = 0, 0
        if len(token_ids) < SHORTEST_MATCH:
            return best, longest
        for place in reversed(self._places.get((token_ids[-2], token_ids[-1]), ())):
            length = _num_agreeing(token_ids, place)
            if length > longest:
                best, longest = place, length
            if longest == LONGEST_MATCH:
                break
        return best, longest


def num_equal(guessed: Sequence[int], came: Sequence[int]) -> int:
    """How many tokens the two have in common from the beginning."""
    pairs = enumerate(zip(guessed, came, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(guessed), len(came)))


def _repeat(token_ids: Sequence[int], count: int) -> Sequence[int]:
    """The first `count` of these tokens over and over: what follows a text that ends with them as it began."""
    return [token_ids[i % len(token_ids)] for i in range(count)]


def _num_agreeing(token_ids: Sequence[int], place: int) -> int:
    """How many tokens before `place` are the last ones of the text."""
    length, longest = SHORTEST_MATCH, min(LONGEST_MATCH, place)
    while length < longest and token_ids[place - length - 1] == token_ids[-length - 1]:
        length += 1
    return length
