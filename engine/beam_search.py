"""Beam search over log-probabilities: which beams go on, which are parked, when to end. Knows no memory and no model.

The rules are those of transformers' `generate(num_beams=width, do_sample=False)`. Each step ranks all continuations of
all beams by cumulative logprob. Of the best `width`, those that end with an end token (at `max_length`: all) become
hypotheses; the best `width` that do not end go on. Hypotheses score their cumulative logprob / length ^ penalty, the
length counting generated tokens only, and the best `width` are kept. A width of 1 is greedy search.

A beam has a slot, 0 to width - 1. The best continuation of a beam stays in its slot; others take slots whose beams have
none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from engine.outputs import SampledToken, TokenLogprob
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished answer; `is_stopped` if an end token ends it, else a limit did."""

    tokens: tuple[SampledToken, ...]
    cumulative_logprob: float
    score: float
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class Continuation:
    """The beam in `slot` is now that in `parent` and one more token."""

    slot: int
    parent: int
    token_id: int


@dataclass(frozen=True, slots=True)
class _Beam:
    slot: int
    tokens: tuple[SampledToken, ...]
    cumulative_logprob: float


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A beam with one more token, before anybody knows whether it is wanted."""

    parent: _Beam
    token: TokenLogprob
    cumulative_logprob: float


class BeamSearch:
    """The state of one search. `hypotheses` are the best so far, best first; once `is_done`, they are the answer."""

    def __init__(
        self, params: SamplingParams, end_token_ids: frozenset[int], max_length: int
    ) -> None:
        """At most `max_length` tokens are generated. `params.beams` must be there."""
        assert params.beams is not None, "a beam search without its parameters"
        self._params, self._num_logprobs = params.beams, params.logprobs
        self._end_token_ids = end_token_ids
        self._max_length = max_length
        self._beams = [_Beam(0, (), 0.0)]
        self.hypotheses: list[Hypothesis] = []
        self.is_done = False

    @property
    def slots(self) -> list[int]:
        """Where the beams are that go on; only slot 0 before the first step."""
        return [beam.slot for beam in self._beams]

    @property
    def num_candidates(self) -> int:
        """How many of its best tokens each beam must be given in a step."""
        return self._params.width + len(self._end_token_ids)

    def advance(self, drawn: Mapping[int, SampledToken]) -> list[Continuation]:
        """Take one step: `drawn` has by slot each beam's best tokens, `num_candidates` of them, as `top_logprobs`.

        Returns how the beams go on, none if the search is done.
        """
        candidates = sorted(
            self._candidates(drawn), key=attrgetter("cumulative_logprob"), reverse=True
        )
        best = candidates[: self._params.width]
        going_on = [c for c in candidates if not self._is_end(c)][: self._params.width]
        length = len(self._beams[0].tokens) + 1
        # Fewer ways on than beams: possible only with a vocabulary that is hardly larger than the width.
        is_last = length == self._max_length or len(going_on) < self._params.width
        self._park([c for c in best if is_last or self._is_end(c)], drawn)
        if is_last or self._cannot_improve(going_on[0].cumulative_logprob, length):
            self.is_done = True
            return []
        return self._go_on(going_on, drawn)

    def conclude(self) -> None:
        """End here: the beams that go on become hypotheses, as if this were the maximal length."""
        self._keep([self._hypothesis(beam, is_stopped=False) for beam in self._beams])
        self.is_done = True

    def _candidates(self, drawn: Mapping[int, SampledToken]) -> Iterator[_Candidate]:
        """Of each beam's tokens, best first, those up to the `width`th that does not end it: no other can matter."""
        for beam in self._beams:
            num_open = 0
            for token in drawn[beam.slot].top_logprobs[: self.num_candidates]:
                yield _Candidate(beam, token, beam.cumulative_logprob + token.logprob)
                num_open += token.token_id not in self._end_token_ids
                if num_open == self._params.width:
                    break

    def _is_end(self, candidate: _Candidate) -> bool:
        return candidate.token.token_id in self._end_token_ids

    def _park(self, finished: list[_Candidate], drawn: Mapping[int, SampledToken]) -> None:
        self._keep(
            [
                self._hypothesis(self._grow(c, c.parent.slot, drawn), is_stopped=self._is_end(c))
                for c in finished
            ]
        )

    def _keep(self, hypotheses: list[Hypothesis]) -> None:
        self.hypotheses += hypotheses
        self.hypotheses.sort(key=attrgetter("score"), reverse=True)
        del self.hypotheses[self._params.width :]

    def _hypothesis(self, beam: _Beam, *, is_stopped: bool) -> Hypothesis:
        score = beam.cumulative_logprob / len(beam.tokens) ** self._params.length_penalty
        return Hypothesis(beam.tokens, beam.cumulative_logprob, score, is_stopped)

    def _cannot_improve(self, best_logprob: float, length: int) -> bool:
        """Whether there are enough hypotheses, and no beam is expected to beat the worst of them."""
        width, penalty = self._params.width, self._params.length_penalty
        if len(self.hypotheses) < width:
            return False
        if self._params.early_stopping is True or width == 1:
            return True
        if self._params.early_stopping == "never" and penalty > 0:
            length = self._max_length
        return best_logprob / length**penalty <= self.hypotheses[-1].score

    def _go_on(
        self, chosen: list[_Candidate], drawn: Mapping[int, SampledToken]
    ) -> list[Continuation]:
        unclaimed = {c.parent.slot for c in chosen}
        free = iter(sorted(set(range(self._params.width)) - unclaimed))
        continuations, beams = [], []
        for c in chosen:
            parent = c.parent.slot
            slot = parent if parent in unclaimed else next(free)
            unclaimed.discard(parent)
            beams.append(self._grow(c, slot, drawn))
            continuations.append(Continuation(slot, parent, c.token.token_id))
        self._beams = beams
        return continuations

    def _grow(self, c: _Candidate, slot: int, drawn: Mapping[int, SampledToken]) -> _Beam:
        top = drawn[c.parent.slot].top_logprobs
        wanted = self._num_logprobs
        token = SampledToken(c.token.token_id)
        if wanted is not None:
            token = SampledToken(c.token.token_id, c.token, top[:wanted])
        return _Beam(slot, (*c.parent.tokens, token), c.cumulative_logprob)
