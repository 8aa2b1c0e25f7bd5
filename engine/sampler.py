"""Logits to tokens: bias, penalties, temperature, truncation, one draw per row, and log-probabilities.

Order and meaning are vLLM's: what the grammar allows, forbidden ids, logit_bias, repetition_penalty (a positive logit is divided by it, a
negative one multiplied, for every token of prompt and output), frequency_penalty and presence_penalty (output only),
temperature, min_p (relative to the most likely token), top_k (ties with the k-th stay), top_p (the smallest set of
most likely tokens that reaches it, at least one; on what the others left). Equal logits rank by token id.

Each row is computed by itself in float32, so a result never depends on the rest of the batch. A seeded draw is a hash
of (seed, number of output tokens); others come from one generator.

What grammars allow is worked out in a thread beside the forward pass: `prepare` before it, `sample` after it.
"""

import hashlib
import logging
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.outputs import Failure, SampledToken, SampleRequest, TokenLogprob
from engine.sampling_params import SamplingParams
from engine.token_masks import Allowed, MaskThread, find_ids

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]

FORBIDDEN_LOGIT = -1e30
MIN_LOGPROB = -9999.0
NUM_BINS, BIN_WIDTH = 1024, 0.025
SUM_BLOCK = 256
SMALL_TOP_K = 512

logger = logging.getLogger(__name__)


class Sampler:
    """Draws one token per row. Without a `seed`, draws of requests without one start from the system's entropy."""

    def __init__(self, seed: int | None) -> None:
        self._generator = np.random.default_rng(seed)
        self._allowed = MaskThread(find_ids)

    def prepare(self, requests: Sequence[SampleRequest]) -> None:
        """Begin to work out what the grammars of `requests` allow; `sample` of the same requests must follow."""
        self._allowed.prepare(requests)

    def sample(self, logits: torch.Tensor, requests: Sequence[SampleRequest]) -> list[SampledToken]:
        """`logits` [len(requests), vocab_size], any float type and device; unchanged."""
        return self.sample_among(logits, requests, self._allowed.take())

    def sample_among(
        self, logits: torch.Tensor, requests: Sequence[SampleRequest], allowed: Allowed
    ) -> list[SampledToken]:
        """`sample` where it is known already what the grammars of `requests` allow."""
        rows = logits.detach().float().cpu().numpy()
        return [
            self._sample_row(_finite(row), request, allowed.get(request.seq_id))
            for row, request in zip(rows, requests, strict=True)
        ]

    def _sample_row(
        self, raw: Floats, request: SampleRequest, allowed: Ints | Failure | None
    ) -> SampledToken:
        if isinstance(allowed, Failure):
            return SampledToken(-1, error=allowed)
        token_id = self._choose(raw, request, allowed)
        params = request.params
        if params.logprobs is None and not request.num_candidates:
            return SampledToken(token_id)
        return _with_logprobs(raw, token_id, max(params.logprobs or 0, request.num_candidates))

    def _choose(self, raw: Floats, request: SampleRequest, allowed: Ints | None) -> int:
        if allowed is not None and allowed.size == 1:
            return int(allowed[0])
        row = adjust_logits(raw, request)
        if allowed is not None:
            row = row[allowed]
        if request.params.is_greedy:
            position = int(row.argmax())
        else:
            position = draw(row, request.params, self.uniform(request))
        return position if allowed is None else int(allowed[position])

    def uniform(self, request: SampleRequest) -> float:
        """The number in [0, 1) that decides a draw."""
        if request.seed is None:
            return self._generator.random()
        return seeded_uniform(request.seed, len(request.output_token_ids))


def seeded_uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed modulo 2^64, position) only."""
    key = (seed % 2**64).to_bytes(8, "little") + position.to_bytes(8, "little")
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def adjust_logits(raw: Floats, request: SampleRequest) -> Floats:
    """Forbidden ids, bias and penalties; returns `raw` itself when there is nothing to do. [vocab_size]"""
    if not is_changed(request):
        return raw
    row = raw.copy()
    change_logits(row, request)
    return row


def is_changed(request: SampleRequest) -> bool:
    """Whether the row is not drawn from as it is: `change_logits` changes something."""
    params = request.params
    if request.forbidden_token_ids or params.logit_bias or params.repetition_penalty != 1.0:
        return True
    return _has_penalty(params) and bool(request.output_token_ids)


def changed_ids(request: SampleRequest) -> list[int]:
    """The ids whose logits `change_logits` may change, some of them several times."""
    params = request.params
    ids = [*request.forbidden_token_ids, *params.logit_bias]
    if params.repetition_penalty != 1.0:
        ids += request.prompt_token_ids
    if params.repetition_penalty != 1.0 or _has_penalty(params):
        ids += request.output_token_ids
    return ids


def change_logits(row: Floats, request: SampleRequest) -> None:
    """Forbidden ids, bias and penalties, written into the row [vocab_size]."""
    params = request.params
    if request.forbidden_token_ids:
        row[list(request.forbidden_token_ids)] = FORBIDDEN_LOGIT
    if params.logit_bias:
        row[list(params.logit_bias)] += np.fromiter(params.logit_bias.values(), np.float32)
    if params.repetition_penalty != 1.0:
        seen = np.asarray([*request.prompt_token_ids, *request.output_token_ids], np.int64)
        values = row[seen]
        penalty = np.float32(params.repetition_penalty)
        row[seen] = np.where(values > 0, values / penalty, values * penalty)
    if _has_penalty(params):
        ids, counts = np.unique(np.asarray(request.output_token_ids, np.int64), return_counts=True)
        penalties = params.frequency_penalty * counts + params.presence_penalty
        row[ids] -= penalties.astype(np.float32)


def _has_penalty(params: SamplingParams) -> bool:
    return bool(params.frequency_penalty or params.presence_penalty)


def draw(row: Floats, params: SamplingParams, uniform: float) -> int:
    """Temperature, truncation, and the token at `uniform` [0, 1) of the mass that is left. `row` [vocab_size]"""
    scores = (row - row.max()) * np.float32(1.0 / params.temperature)  # the best has 0
    ids = _above_floor(scores, params)
    if ids is not None:
        scores = scores[ids]
    weights = np.exp(scores)
    if params.top_p < 1.0:
        keep_nucleus(scores, weights, params.top_p)
    position = _pick(weights, uniform)
    return position if ids is None else int(ids[position])


def _above_floor(scores: Floats, params: SamplingParams) -> Ints | None:
    """Ids that min_p and top_k keep, ascending, or None for all: both are lower bounds of the score."""
    floor = math.log(params.min_p) if params.min_p > 0 else -math.inf
    if 0 < params.top_k < scores.size:
        floor = max(floor, _kth_largest(scores, params.top_k))
    return np.flatnonzero(scores >= floor) if floor > -math.inf else None


def _kth_largest(values: Floats, k: int) -> float:
    if k <= SMALL_TOP_K:
        return float(torch.topk(torch.from_numpy(values), k, sorted=False).values.min())
    return float(np.partition(values, values.size - k)[values.size - k])


def keep_nucleus(scores: Floats, weights: Floats, top_p: float) -> None:
    """Set to 0 all `weights` but the fewest best that reach `top_p` of the sum, without sorting all of them.

    Tokens are put in bins of equal score width: bins above the edge stay whole, only the bin on the edge is sorted.
    """
    target = top_p * float(weights.sum(dtype=np.float64))
    bins = np.minimum(scores * np.float32(-1 / BIN_WIDTH), NUM_BINS - 1).astype(np.int64)
    mass = np.cumsum(np.bincount(bins, weights))
    edge = min(int(np.searchsorted(mass, target)), mass.size - 1)
    missing = target - (mass[edge - 1] if edge else 0.0)
    on_edge = np.flatnonzero(bins == edge)
    on_edge = on_edge[np.argsort(-scores[on_edge], kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[on_edge], dtype=np.float64), missing)) + 1
    weights[bins > edge] = 0
    weights[on_edge[count:]] = 0


def _pick(weights: Floats, uniform: float) -> int:
    """The index where the running sum passes `uniform` of the total: block sums first, then inside one block."""
    starts = np.arange(0, weights.size, SUM_BLOCK)
    sums = np.cumsum(np.add.reduceat(weights, starts), dtype=np.float64)
    target = min(uniform * sums[-1], np.nextafter(sums[-1], 0))
    block = int(np.searchsorted(sums, target, side="right"))
    start = block * SUM_BLOCK
    inside = weights[start : start + SUM_BLOCK]
    target -= sums[block - 1] if block else 0.0
    index = int(np.searchsorted(np.cumsum(inside, dtype=np.float64), target, side="right"))
    return start + min(index, int(np.flatnonzero(inside)[-1]))


def _with_logprobs(raw: Floats, token_id: int, num_top: int) -> SampledToken:
    peak = raw.max()
    log_sum = float(peak) + math.log(np.exp(raw - peak).sum(dtype=np.float64))

    def entry(token: int, rank: int) -> TokenLogprob:
        return TokenLogprob(token, max(float(raw[token]) - log_sum, MIN_LOGPROB), rank)

    better = int(np.count_nonzero(raw > raw[token_id]))
    ties_before = int(np.count_nonzero(raw[:token_id] == raw[token_id]))
    top = (entry(token, rank) for rank, token in enumerate(_best(raw, num_top), start=1))
    return SampledToken(token_id, entry(token_id, better + ties_before + 1), tuple(top))


def _best(raw: Floats, count: int) -> list[int]:
    """The `count` ids of highest logit, best first."""
    count = min(count, raw.size)
    if count == 0:
        return []
    ids = np.flatnonzero(raw >= _kth_largest(raw, count))
    return ids[np.argsort(-raw[ids], kind="stable")][:count].tolist()


def _finite(row: Floats) -> Floats:
    """The row itself, or one that can be sampled when the model's arithmetic failed, which ends in the log."""
    if math.isfinite(row.max()):
        return row
    logger.error("the model gave logits that are not finite; this sequence's text is unreliable")
    return np.nan_to_num(row, nan=FORBIDDEN_LOGIT, posinf=-FORBIDDEN_LOGIT, neginf=FORBIDDEN_LOGIT)
