"""How far each decoding sequence guesses ahead in a step. A draft is a token that is computed before it is drawn.

A step that computes drafts draws behind each of them as it would have drawn anyhow, and keeps what it drew for as long as
the drafts were what was drawn. So the tokens are those of a run without drafts, to the last one: with greedy decoding, with a
seed, and in distribution without one (for a guess that is a single token, this accepts as often as the rejection sampling
of Leviathan et al. 2023 does). What drafts change is how many steps it takes.

A row more in a step is cheap as long as weights are read once for all rows, but not free. Drafts are taken in the order of
their chances, as many as make the step yield the most tokens for its time.
"""

from collections.abc import Sequence as Row
from itertools import accumulate

from engine.prompt_lookup import NO_GUESS, Guess, PromptLookup
from engine.sequence import Sequence

MAX_ROWS = 12
"""No step with drafts has more decoding rows: beyond, rows cost about as much as steps."""

CHEAP_ROWS = 6
"""Up to so many rows one more is taken to cost little."""


class Drafter:
    """Chooses drafts, up to `longest` tokens per sequence; 0: none."""

    def __init__(self, longest: int) -> None:
        self._longest = longest

    def draft(self, decodes: Row[Sequence], budget: int) -> dict[Sequence, list[int]]:
        """The drafts of those that have any, `budget` tokens at most. All of `decodes` have one token to compute."""
        budget = min(budget, MAX_ROWS - len(decodes))
        if self._longest == 0 or budget <= 0:
            return {}
        guesses = [self._guess(seq, budget) for seq in decodes]
        counts = choose_counts(guesses, budget)
        return {
            seq: list(guess.token_ids[:count])
            for seq, guess, count in zip(decodes, guesses, counts, strict=True)
            if count
        }

    def _guess(self, seq: Sequence, budget: int) -> Guess:
        num_left = seq.max_output_tokens - len(seq.output_token_ids) - 1
        limit = min(budget, self._longest, num_left)
        if limit <= 0 or not _may_guess(seq):
            return NO_GUESS
        if seq.lookup is None:
            seq.lookup = PromptLookup()
        return seq.lookup.guess(seq.token_ids, limit)


def choose_counts(guesses: Row[Guess], budget: int) -> list[int]:
    """How many tokens of each guess to compute, so that the step yields the most tokens for its time."""
    drafts = [
        (-(guess.chance ** (place + 1)), place, index)
        for index, guess in enumerate(guesses)
        for place in range(len(guess.token_ids))
    ]
    drafts = sorted(drafts)[:budget]
    num_rows = len(guesses)
    yields = accumulate((-chance for chance, *_ in drafts), initial=float(num_rows))
    rates = [tokens / step_cost(num_rows + i) for i, tokens in enumerate(yields)]
    chosen = drafts[: rates.index(max(rates))]
    return [sum(index == i for *_, index in chosen) for i in range(num_rows)]


def step_cost(num_rows: int) -> float:
    """What a decoding step of so many rows is taken to cost, against one of one row; why not what it costs: docs/performance.md."""
    if num_rows <= CHEAP_ROWS:
        return 1 + 0.06 * (num_rows - 1)
    return 1.1 + 0.1 * num_rows


def _may_guess(seq: Sequence) -> bool:
    """Whether what follows is drawn token by token: not in a beam search, nor where a grammar must see each token first."""
    request = seq.request
    return bool(seq.output_token_ids) and request.group is None and request.grammar is None
