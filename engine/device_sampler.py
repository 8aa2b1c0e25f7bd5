"""Draws where the logits are, so that of a step's logits only token ids reach the host.

Means what `engine.sampler` means, in the same order: temperature, min_p and top_k as lower bounds, top_p on what they left, one
draw; equal logits rank by token id. Rows that ask for more (penalties, biases, forbidden ids, log-probabilities, beams, grammars), and rows
whose logits are not finite, go to the host's sampler. Nothing waits for the device but the ids at the end.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from engine.outputs import SampledToken, SampleRequest
from engine.sampler import Sampler
from engine.transfer import to_device

NO_TOKEN = -1


class DeviceSampler:
    """Draws one token per row; unseeded draws come from the host's sampler's generator."""

    def __init__(self, host: Sampler) -> None:
        self._host = host

    def prepare(self, requests: Sequence[SampleRequest]) -> None:
        """Begin to work out what the grammars of `requests` allow; `sample` of the same requests must follow."""
        self._host.prepare(requests)

    def sample(self, logits: torch.Tensor, requests: Sequence[SampleRequest]) -> list[SampledToken]:
        """`logits` [len(requests), vocab_size] float32, on any device; unchanged."""
        ids = [NO_TOKEN] * len(requests)
        plain = [row for row, request in enumerate(requests) if is_plain(request)]
        if plain:
            rows = logits if len(plain) == len(requests) else logits[_on(logits.device, plain)]
            drawn = self._draw(rows, [requests[row] for row in plain])
            for row, token_id in zip(plain, drawn.tolist(), strict=True):
                ids[row] = token_id
        others = [row for row, token_id in enumerate(ids) if token_id == NO_TOKEN]
        tokens = {row: SampledToken(token_id) for row, token_id in enumerate(ids)}
        if others:
            rows = logits[_on(logits.device, others)]
            asked = [requests[row] for row in others]
            tokens.update(zip(others, self._host.sample(rows, asked), strict=True))
        return [tokens[row] for row in range(len(requests))]

    def _draw(self, logits: torch.Tensor, requests: Sequence[SampleRequest]) -> torch.Tensor:
        peak = logits.amax(-1, keepdim=True)
        best = _first(logits == peak)
        if not all(request.params.is_greedy for request in requests):
            best = torch.where(*self._drawn(logits - peak, requests), best)
        return best.masked_fill(~peak.isfinite()[:, 0], NO_TOKEN)

    def _drawn(
        self, scores: torch.Tensor, requests: Sequence[SampleRequest]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Which rows are drawn, and their tokens; `scores` [num_rows, vocab_size], the best has 0."""
        params = [request.params for request in requests]
        is_drawn = np.array([not p.is_greedy for p in params])
        inverse = np.array(
            [0.0 if p.is_greedy else 1.0 / p.temperature for p in params], np.float32
        )
        floor = np.array([math.log(p.min_p) if p.min_p > 0 else -math.inf for p in params])
        top_k = np.array([p.top_k if 0 < p.top_k < scores.shape[1] else 0 for p in params])
        top_p = np.array([p.top_p for p in params])
        uniform = np.array(
            [self._host.uniform(r) if d else 0.0 for r, d in zip(requests, is_drawn, strict=True)]
        )
        host = [is_drawn, inverse, floor.astype(np.float32), top_k, top_p, uniform]
        there = [x[:, None] for x in to_device(host, scores.device)]
        scores = scores * there[1]
        if top_k.any():
            scores = _keep_best(scores, there[3], int(top_k.max()))
        scores = scores.masked_fill(scores < there[2], -math.inf)
        weights = scores.exp().double()
        if (top_p < 1).any():
            weights = _keep_nucleus(scores, weights, there[4])
        return there[0][:, 0], _pick(weights, there[5])


def is_plain(request: SampleRequest) -> bool:
    """Whether a row can be drawn on the device."""
    params = request.params
    return not (
        request.forbidden_token_ids
        or params.logit_bias
        or params.frequency_penalty
        or params.presence_penalty
        or params.repetition_penalty != 1.0
        or params.logprobs is not None
        or request.num_candidates
        or request.matcher is not None
    )


def _keep_best(scores: torch.Tensor, top_k: torch.Tensor, largest: int) -> torch.Tensor:
    """The `top_k` [num_rows, 1] best of each row and what equals the last of them; 0 keeps all."""
    best = scores.topk(largest, dim=-1).values
    last = best.gather(1, (top_k - 1).clamp(min=0))
    return scores.masked_fill((scores < last) & (top_k > 0), -math.inf)


def _keep_nucleus(scores: torch.Tensor, weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The `weights` of the fewest best of each row that reach `top_p` [num_rows, 1] of its sum, one at least."""
    # Scores have half the bits of weights, and a radix sort costs so much less.
    ids = scores.sort(dim=-1, descending=True, stable=True).indices
    ordered = weights.gather(1, ids)
    before = ordered.cumsum(-1) - ordered
    target = top_p * ordered.sum(-1, keepdim=True)
    is_kept = (before < target) | (top_p >= 1)
    is_kept[:, 0] = True
    return torch.zeros_like(weights).scatter_(1, ids, ordered.where(is_kept, 0.0))


def _pick(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The index of each row where the running sum passes `uniform` [num_rows, 1] of the total."""
    sums = weights.cumsum(-1)
    return _first((sums > uniform * sums[:, -1:]) & (weights > 0))


def _first(found: torch.Tensor) -> torch.Tensor:
    """The first index of each row where `found` holds; argmax does not promise which of several."""
    size = found.shape[-1]
    indices = torch.arange(size, device=found.device)
    return torch.where(found, indices, size).amin(-1)


def _on(device: torch.device, rows: list[int]) -> torch.Tensor:
    return to_device([np.array(rows)], device)[0]
