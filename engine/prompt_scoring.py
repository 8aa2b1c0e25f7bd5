"""Judges the tokens of a prompt by the logits before them, with torch, and cuts the runs of the fused runner, which has a way of its own.

Means what `engine.sampler` means by log-probabilities: of the raw distribution, ranks from 1, equal logits in order of id.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from engine.outputs import ScheduledSequence, ScoredToken, TokenLogprob
from engine.sampler import MIN_LOGPROB
from engine.transfer import to_device

ROWS_AT_A_TIME = 32
"""Rows whose logits are there at a time: those of a whole chunk would take hundreds of megabytes."""


def score_rows(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> list[ScoredToken]:
    """`logits` [len(token_ids), vocab_size], any float type and device; unchanged."""
    logits = logits.detach().float()
    targets = to_device([np.asarray(token_ids, np.int64)], logits.device)[0][:, None]
    chosen = logits.gather(1, targets)
    best = logits.topk(min(num_top, logits.shape[1]), dim=1)
    values = _logprobs(logits, torch.cat((chosen, best.values), 1)).tolist()
    ranks, best_ids = _ranks(logits, targets, chosen).tolist(), best.indices.tolist()
    return [
        ScoredToken(TokenLogprob(token_id, value, rank), _ranked(best_of_row, top))
        for token_id, rank, best_of_row, (value, *top) in zip(
            token_ids, ranks, best_ids, values, strict=True
        )
    ]


def split_scored(
    scheduled: Sequence[ScheduledSequence], max_rows: int
) -> tuple[list[ScheduledSequence], Sequence[ScheduledSequence]]:
    """Runs of `max_rows` tokens at most after each of which a token is to be judged; and the rest, to compute after them."""
    if all(sequence.score is None for sequence in scheduled):
        return [], scheduled
    runs: list[ScheduledSequence] = []
    rest: list[ScheduledSequence] = []
    for sequence in scheduled:
        num_scored = 0 if sequence.score is None else len(sequence.score.token_ids)
        cuts = [*range(0, num_scored, max_rows), num_scored]
        runs += (_part(sequence, begin, end) for begin, end in pairwise(cuts))
        if num_scored < len(sequence.token_ids):
            rest.append(_unscored(sequence, num_scored))
    return runs, rest


def _part(sequence: ScheduledSequence, begin: int, end: int) -> ScheduledSequence:
    assert sequence.score is not None, "only tokens to be judged are cut out"
    return replace(
        sequence,
        token_ids=sequence.token_ids[begin:end],
        start_position=sequence.start_position + begin,
        samples=(),
        score=replace(sequence.score, token_ids=sequence.score.token_ids[begin:end]),
    )


def _unscored(sequence: ScheduledSequence, num_scored: int) -> ScheduledSequence:
    if sequence.score is None:
        return sequence
    start = sequence.start_position + num_scored
    token_ids = sequence.token_ids[num_scored:]
    return replace(sequence, token_ids=token_ids, start_position=start, score=None)


def _logprobs(logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Of some `values` [rows, any] among the `logits` [rows, vocab_size]; finite, as they go into JSON."""
    peak = logits.amax(1, keepdim=True)
    log_sum = (logits - peak).exp().sum(1, keepdim=True, dtype=torch.float64).log() + peak
    return (values - log_sum).nan_to_num(MIN_LOGPROB).clamp(min=MIN_LOGPROB)


def _ranks(logits: torch.Tensor, targets: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """How many tokens come before each of the `targets` [rows, 1], and one."""
    ids = torch.arange(logits.shape[1], device=logits.device)
    is_before = (logits > chosen) | ((logits == chosen) & (ids < targets))
    return 1 + is_before.sum(1)


def _ranked(token_ids: Sequence[int], logprobs: Sequence[float]) -> tuple[TokenLogprob, ...]:
    ordered = sorted(zip(logprobs, token_ids, strict=True), key=lambda entry: (-entry[0], entry[1]))
    return tuple(
        TokenLogprob(token_id, value, rank)
        for rank, (value, token_id) in enumerate(ordered, start=1)
    )
