"""Where the answers of one generation part, and what else the model could have said there.

A question about a token is one request of the engine: the prompt and the tokens before it are mostly in the prefix
cache, and the token that was drawn is forced by a bias, as log-probabilities are those of the raw distribution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from chat.owners import Owner, RequestOwners
from chat.ports import Engine
from chat.prompts import Prompts
from chat.tokens import AnswerTokens
from chat.turns import Turn
from engine.errors import EngineDeadError, RequestError
from engine.outputs import CandidateFinished, TextDelta, TextLogprob
from engine.sampling_params import SamplingParams

NUM_CHOICES = 5
FORCED = 100.0


@dataclass(frozen=True, slots=True)
class Parting:
    """An answer's first token that no other answer has at its place: `content[start:end]`, in code points.

    An answer that is another's beginning parts at its end: `at_token` is how many tokens it has, and the place is empty.
    """

    message_id: str
    at_token: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that could stand at a place, with the probability that the model gave it."""

    text: str
    probability: float
    drawn: bool


def find_partings(answers: Sequence[tuple[str, AnswerTokens]]) -> tuple[Parting, ...]:
    """Where each answer, given with its message's id, leaves the longest text that it shares with another."""
    return tuple(_parting(each, answers) for each in answers)


def _parting(
    answer: tuple[str, AnswerTokens], answers: Sequence[tuple[str, AnswerTokens]]
) -> Parting:
    message_id, tokens = answer
    others = (other for other_id, other in answers if other_id != message_id)
    at_token = max((_num_common(tokens.ids, other.ids) for other in others), default=0)
    ends = [0, *tokens.whole_ends()]
    end = ends[min(at_token + 1, len(tokens.ids))]
    return Parting(message_id, at_token, len(tokens.first(at_token).content), end)


def _num_common(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = zip(a, b, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


async def find_choices(
    engine: Engine, owners: RequestOwners, prompts: Prompts, turn: Turn, drawn: int | None
) -> tuple[Choice, ...]:
    """The model's likeliest tokens behind `turn.beginning`, and the drawn one, likeliest first.

    `drawn` None: the answer ended there. Probabilities are before temperature and filters.
    """
    forced = {} if drawn is None else {drawn: FORCED}
    params = SamplingParams(
        max_tokens=1, temperature=0.0, logprobs=NUM_CHOICES, logit_bias=forced, ignore_eos=True
    )
    prompt = await prompts.checked(turn, params)
    stream = engine.submit(prompt.token_ids, params)
    if turn.conversation is not None:
        owners.note(stream.request_id, Owner(turn.conversation.id, None, turn.conversation.title))
    try:
        async for event in stream:
            if isinstance(event, TextDelta) and event.logprobs:
                return _choices(event.logprobs[0], drawn)
            if isinstance(event, CandidateFinished) and event.error:
                raise EngineDeadError(event.error.message)
    finally:
        await stream.aclose()
    raise RequestError("the model said nothing about this token", param="at_token")


def _choices(sampled: TextLogprob, drawn: int | None) -> tuple[Choice, ...]:
    found = {top.token_id: top for top in (*sampled.top, *([sampled] if drawn is not None else []))}
    ranked = sorted(found.values(), key=lambda each: -each.logprob)
    return tuple(Choice(c.token, math.exp(c.logprob), c.token_id == drawn) for c in ranked)
