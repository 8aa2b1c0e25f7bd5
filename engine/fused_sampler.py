"""Draws with the fused step's threads: in the step's own call, or in one for all other rows, never a pass in Python for each.

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

from engine.draws import Draws
from engine.outputs import SampledToken, SampleRequest, TokenLogprob
from engine.sampler import MIN_LOGPROB, Floats, Sampler, change_logits, changed_ids, is_changed
from engine.token_masks import Masks, MaskThread, PackedMasks, find_masks, unpacked
from kernels.cpu.fused.ranking import RANK
from kernels.cpu.fused.sampling import DRAW, UNUSABLE


class RowJobs(Protocol):
    """What draws from and ranks in rows of logits; a FusedModel."""

    def draw(self, logits: np.ndarray, records: np.ndarray) -> np.ndarray: ...
    def rank(self, logits: np.ndarray, records: np.ndarray) -> None: ...


class FusedSampler:
    """Draws one token per row; unseeded draws come from the host's sampler's generator.

    Most rows are drawn from as they are: the step does so itself, in the call that computes them.
    """

    def __init__(self, host: Sampler, jobs: RowJobs) -> None:
        self._host, self._jobs = host, jobs
        self._masks = MaskThread(find_masks)
        self._in_step: tuple[list[int], np.ndarray] = [], np.zeros(0, DRAW)

    def prepare(self, requests: Sequence[SampleRequest]) -> None:
        """Begin to work out what the grammars of `requests` allow; `sample` of the same requests must follow."""
        self._masks.prepare(requests)

    def draws_of_step(self, draws: Draws) -> np.ndarray:
        """Records (sampling.DRAW) of what the step can draw itself; `sample` of the same requests finds the tokens there."""
        requests, sources = draws.requests, draws.sources
        rows = [row for row, asked in enumerate(requests) if _is_plain(asked)]
        records = np.array([self._record(sources[row], requests[row], 0) for row in rows], DRAW)
        self._in_step = rows, records
        return records

    def sample(self, logits: torch.Tensor, requests: Sequence[SampleRequest]) -> list[SampledToken]:
        """`logits` [len(requests), vocab_size] float32 on the CPU, rows of their own; unchanged when it returns."""
        masks = self._masks.take()
        ids = self._take_drawn()
        late = [row for row in range(len(requests)) if row not in ids]
        if late:
            ids |= self._draw(logits.numpy(), requests, late, masks)
        tokens = {row: SampledToken(id_) for row, id_ in ids.items() if id_ != UNUSABLE}
        ranked = [row for row in tokens if num_ranked(requests[row]) is not None]
        if ranked:
            tokens |= self._rank(logits.numpy(), requests, {row: tokens[row] for row in ranked})
        others = [row for row in range(len(requests)) if row not in tokens]
        if others:
            asked = [requests[row] for row in others]
            drawn = self._host.sample_among(logits[others], asked, unpacked(masks))
            tokens |= dict(zip(others, drawn, strict=True))
        return [tokens[row] for row in range(len(requests))]

    def _take_drawn(self) -> dict[int, int]:
        """By row the tokens that the step has drawn."""
        rows, records = self._in_step
        self._in_step = [], records[:0]
        return dict(zip(rows, records["token"].tolist(), strict=True))

    def _draw(
        self,
        logits: Floats,
        requests: Sequence[SampleRequest],
        rows: Sequence[int],
        masks: Masks,
    ) -> dict[int, int]:
        """By row the tokens of those of `rows` whose grammar goes on."""
        packed = PackedMasks(masks, requests, logits.shape[1])
        rows = [row for row in rows if row not in packed.failed]
        asked = [self._record(row, requests[row], packed.address(row)) for row in rows]
        with changed(logits, requests, rows):
            ids = self._jobs.draw(logits, np.array(asked, DRAW)).tolist()
        return dict(zip(rows, ids, strict=True))

    def _record(self, row: int, request: SampleRequest, mask: int) -> tuple[float, ...]:
        params = request.params
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


def _is_plain(request: SampleRequest) -> bool:
    """Whether its row is drawn from as it is, and whole."""
    return request.matcher is None and not is_changed(request)


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
