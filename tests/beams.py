"""Beam search written down once more, as simply as possible: what the engine must answer, worked out without one.

A whole ranking is sorted in every step, tokens are plain tuples, and memory is only counted: a beam search that goes on ends
when the blocks of its next step, each shared by all beams that begin alike, are more than the pool has.
"""

from collections.abc import Callable, Sequence

from engine.config import SchedulerConfig
from engine.outputs import TokenLogprob
from engine.sampling_params import SamplingParams
from tests.fakes import ranking as fake_ranking

Tokens = tuple[int, ...]
Ranking = Callable[[Tokens], Sequence[TokenLogprob]]


def expected_answers(
    prompt: Sequence[int],
    params: SamplingParams,
    config: SchedulerConfig,
    ranking: Ranking = fake_ranking,
) -> list[tuple[list[int], float]]:
    """The n best answers: tokens and cumulative logprob. `ranking` gives a context's best tokens."""
    assert params.beams is not None
    width, penalty, early = (
        params.beams.width,
        params.beams.length_penalty,
        params.beams.early_stopping,
    )
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else config.eos_token_ids)
    longest = min(config.max_model_len, config.num_blocks * config.block_size + 1)
    limit = 1024 if params.max_tokens is None else params.max_tokens
    limit = min(limit, longest - len(prompt))
    running: list[tuple[Tokens, float]] = [((), 0.0)]
    finished: list[tuple[float, Tokens, float]] = []

    def park(answers: list[tuple[Tokens, float]]) -> None:
        for tokens, logprob in answers:
            finished.append((logprob / len(tokens) ** penalty, tokens, logprob))
        finished.sort(key=lambda answer: -answer[0])
        del finished[width:]

    for length in range(1, limit + 1):
        ways = [
            ((*tokens, best.token_id), logprob + best.logprob)
            for tokens, logprob in running
            for best in ranking((*prompt, *tokens))
        ]
        ways.sort(key=lambda way: -way[1])
        running = [way for way in ways if way[0][-1] not in ends][:width]
        if length == limit:
            park(ways[:width])
            break
        park([way for way in ways[:width] if way[0][-1] in ends])
        if len(finished) == width:
            horizon = limit if early == "never" and penalty > 0 else length
            best_hope = running[0][1] / horizon**penalty
            if early is True or width == 1 or best_hope <= finished[-1][0]:
                break
        contexts = [[*prompt, *tokens] for tokens, _ in running]
        if num_blocks(contexts, config.block_size) > config.num_blocks:
            park(running)
            break
    answers = [(list(tokens), logprob) for _, tokens, logprob in finished]
    return (answers or [([], 0.0)] * params.n)[: params.n]


def num_blocks(contexts: Sequence[Sequence[int]], block_size: int) -> int:
    """How many blocks hold these contexts of one length when each that begins alike is stored once."""
    parts = {
        tuple(context[: start + block_size])
        for context in contexts
        for start in range(0, len(context), block_size)
    }
    return len(parts)
