"""Judges the tokens of a prompt with the fused step's threads, as `engine.prompt_scoring` does with torch.

A pass over a row on the step's own threads, which nothing else wakes: a fifth of what torch's take. Rows that are not finite
are left to torch.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.fused_sampler import RowJobs, rank_rows
from engine.outputs import ScoredToken
from engine.prompt_scoring import score_rows
from engine.sampler import Floats
from kernels.cpu.fused.sampling import DRAW, UNUSABLE


def judge_rows(
    jobs: RowJobs, logits: Floats, token_ids: Sequence[int], num_top: int
) -> list[ScoredToken]:
    """`logits` [len(token_ids), vocab_size] float32; unchanged."""
    if not _are_finite(jobs, logits):
        return score_rows(torch.from_numpy(logits), token_ids, num_top)
    counts = [min(num_top, logits.shape[1])] * len(token_ids)
    ranked = rank_rows(jobs, logits, range(len(token_ids)), token_ids, counts)
    return [ScoredToken(own, best) for own, best in ranked]


def _are_finite(jobs: RowJobs, logits: Floats) -> bool:
    """A draw of the best token, the cheapest there is, looks at every logit."""
    records = np.zeros(len(logits), DRAW)
    records["row"] = range(len(logits))
    return UNUSABLE not in jobs.draw(logits, records)
