"""Log-probabilities of a prompt's own tokens: what is still to be judged, and what has been.

A step judges the tokens that follow those it computes. So every token of the prompt has to be computed, whatever the
prefix cache has, until all are judged; after that the request is like any other.

A token that is judged has logits of its own, and on the fused runner runs of its own, so beside others a step judges few.
"""

from collections.abc import Sequence

from engine.outputs import ScoredToken, ScoreRequest

MAX_JUDGED_BESIDE_OTHERS = 32
"""Tokens that a step judges at most if it also computes others: what a runner judges in one go, and a sixteenth of a whole step's."""


def limit_judged(wants: Sequence[int], is_judged: Sequence[bool], has_others: bool) -> list[int]:
    """What is left of the numbers of tokens that sequences want to compute, best in rank first, where a step serves others too."""
    if all(is_judged) and not has_others:
        return list(wants)
    room, limited = MAX_JUDGED_BESIDE_OTHERS, []
    for want, judged in zip(wants, is_judged, strict=True):
        limited.append(min(want, room) if judged else want)
        room -= limited[-1] if judged else 0
    return limited


class PromptScores:
    """The scores of all tokens of a prompt but the first, position after position; each with its `num_top` best.

    They are told as they are judged, so nobody has to deal with those of a long prompt at once, and kept no longer.
    """

    def __init__(self, prompt_token_ids: Sequence[int], num_top: int) -> None:
        self._prompt_token_ids, self._num_top = prompt_token_ids, num_top
        self._untold: list[ScoredToken] = []
        self._num_judged = 0
        self._has_told = False

    @property
    def is_complete(self) -> bool:
        """Whether all are judged."""
        return self._num_judged == len(self._prompt_token_ids) - 1

    def request(self, start_position: int, num_tokens: int) -> ScoreRequest | None:
        """What a step judges that computes `num_tokens` tokens from `start_position` on."""
        first = start_position + 1
        token_ids = self._prompt_token_ids[first : first + num_tokens]
        if self.is_complete or not token_ids:
            return None
        return ScoreRequest(token_ids, self._num_top)

    def add(self, start_position: int, scores: Sequence[ScoredToken]) -> bool:
        """Take in what such a step judged; what was judged already, before a preemption, stays as it was.

        Whether more are judged now than before.
        """
        assert start_position <= self._num_judged, "tokens of the prompt were left out"
        new = scores[self._num_judged - start_position :]
        self._untold += new
        self._num_judged += len(new)
        return bool(new)

    def tell(self) -> tuple[ScoredToken, ...] | None:
        """Those judged since they were last told, if there are any. A prompt of one token has none to tell, once."""
        if not self._untold and (self._has_told or not self.is_complete):
            return None
        told, self._untold, self._has_told = tuple(self._untold), [], True
        return told
