"""Draws with the fused step's threads: one call for all rows of a step instead of a pass in Python for each.

Means what `engine.sampler` means; a row's token depends on the row and its request only. The mask of a row under a grammar is
read by the draw as it is, a bit a token. Rows whose logits are not finite go to the host's sampler, and so do grammars that
cannot go on. What a request changes in its row (biases, penalties, forbidden ids) is written into the row for the draw and
taken back afterwards.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch

from engine.outputs import SampledToken, SampleRequest, TokenLogprob
from engine.sampler import MIN_LOGPROB, Floats, Sampler, change_logits, changed_ids
from engine.token_masks import MaskThread, PackedMasks, find_masks, unpacked
from kernels.cpu.fused.sampling import DRAW, RANK, UNUSABLE


class RowJobs(Protocol):
    """What draws from and ranks in rows of logits; a FusedModel."""

    def draw(self, logits: np.ndarray, records: np.ndarray) -> np.ndarray: ...
    def rank(self, logits: np.ndarray, records: np.ndarray) -> None: ...


class FusedSampler:
    """Draws one token per row; unseeded draws come from the host's sampler's generator."""

    def __init__(self, host: Sampler, jobs: RowJobs) -> None:
        self._host, self._jobs = host, jobs
        self._masks = MaskThread(find_masks)

    def prepare(self, requests: Sequence[SampleRequest]) -> None:
        """Begin to work out what the grammars of `requests` allow; `sample` of the same requests must follow."""
        self._masks.prepare(requests)

    def sample(self, logits: torch.Tensor, requests: Sequence[SampleRequest]) -> list[SampledToken]:
        """`logits` [len(requests), vocab_size] float32 on the CPU, rows of their own; unchanged when it returns."""
        masks = self._masks.take()
        packed = PackedMasks(masks, requests, logits.shape[1])
        tokens = self._draw(logits.numpy(), requests, packed)
        others = [row for row in range(len(requests)) if row not in tokens]
        if others:
            asked = [requests[row] for row in others]
            drawn = self._host.sample_among(logits[others], asked, unpacked(masks))
            tokens.update(zip(others, drawn, strict=True))
        return [tokens[row] for row in range(len(requests))]

    def _draw(
        self, logits: Floats, requests: Sequence[SampleRequest], masks: PackedMasks
    ) -> dict[int, SampledToken]:
        """The tokens of the rows that can be drawn from."""
        rows = [row for row in range(len(requests)) if row not in masks.failed]
        records = np.array([self._record(row, requests[row], masks) for row in rows], DRAW)
        with changed(logits, requests, rows):
            ids = self._jobs.draw(logits, records).tolist()
        tokens = {
            row: SampledToken(id_) for row, id_ in zip(rows, ids, strict=True) if id_ != UNUSABLE
        }
        ranked = [row for row in tokens if num_ranked(requests[row]) is not None]
        if ranked:
            tokens.update(self._rank(logits, requests, {row: tokens[row] for row in ranked}))
        return tokens

    def _record(self, row: int, request: SampleRequest, masks: PackedMasks) -> tuple[float, ...]:
        params, mask = request.params, masks.address(row)
        if params.is_greedy:
            return row, 0.0, 1.0, 0.0, -math.inf, 0, mask, 0
        floor = math.log(params.min_p) if params.min_p > 0 else -math.inf
        # Compiled code counts in 64 bits; more than all columns are all of them, as is 0.
        top_k = params.top_k if 0 < params.top_k < sys.maxsize else 0
        inverse = 1.0 / params.temperature
        return row, self._host.uniform(request), params.top_p, inverse, floor, top_k, mask, 0

    def _rank(
        self,
        logits: Floats,
        requests: Sequence[SampleRequest],
        tokens: dict[int, SampledToken],
    ) -> dict[int, SampledToken]:
        """The same tokens with their log-probabilities and those of the best."""
        counts = [min(num_ranked(requests[row]) or 0, logits.shape[1]) for row in tokens]
        ids = [token.token_id for token in tokens.values()]
        ranked = rank_rows(self._jobs, logits, list(tokens), ids, counts)
        return {
            row: SampledToken(own.token_id, own, best)
            for row, (own, best) in zip(tokens, ranked, strict=True)
        }


def rank_rows(
    jobs: RowJobs,
    logits: Floats,
    rows: Sequence[int],
    token_ids: Sequence[int],
    counts: Sequence[int],
) -> list[tuple[TokenLogprob, tuple[TokenLogprob, ...]]]:
    """Of each of `rows`, which are finite, a token's log-probability, and those of so many best."""
    ends = np.cumsum([0, *counts])
    top = np.empty(int(ends[-1]) + 1, np.int32)
    records = np.zeros(len(rows), RANK)
    records["row"], records["token"] = rows, token_ids
    records["num_top"], records["top"] = counts, top.ctypes.data + 4 * ends[:-1]
    jobs.rank(logits, records)
    best = np.split(top[:-1], ends[1:-1])
    return [
        _logprobs(logits[row], record, ids)
        for row, record, ids in zip(rows, records, best, strict=True)
    ]


def num_ranked(request: SampleRequest) -> int | None:
    """How many best tokens a request wants beside its own; None if it wants no log-probabilities at all."""
    if request.params.logprobs is None and not request.num_candidates:
        return None
    return max(request.params.logprobs or 0, request.num_candidates)


@contextmanager
def changed(
    logits: Floats, requests: Sequence[SampleRequest], rows: Sequence[int]
) -> Iterator[None]:
    """Rows as their requests want them drawn from, until the context ends."""
    before: list[tuple[int, list[int], Floats]] = []
    try:
        for row in rows:
            ids = changed_ids(requests[row])
            if ids:
                before.append((row, ids, logits[row, ids]))
                change_logits(logits[row], requests[row])
        yield
    finally:
        for row, ids, values in before:
            logits[row, ids] = values


def _logprobs(
    row: Floats, record: np.void, top: np.ndarray
) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
    log_sum = float(record["largest"]) + math.log(record["mass"])
    ids = [int(record["token"]), *top.tolist()]
    logprobs = np.maximum(row[ids].astype(np.float64) - log_sum, MIN_LOGPROB).tolist()
    ranks = (int(record["rank"]), *range(1, len(top) + 1))
    own, *others = map(TokenLogprob, ids, logprobs, ranks)
    return own, tuple(others)
