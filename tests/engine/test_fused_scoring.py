"""Prompts judged with the fused step's threads: as torch judges them."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from engine.fused_scoring import judge_rows
from engine.outputs import ScoredToken
from engine.prompt_scoring import score_rows
from kernels.cpu.fused.model import FusedModel
from tests.kernels.fused_reference import RandomModel, needs_fused_cpu
from tests.kernels.test_fused_sampling import SHAPE

pytestmark = needs_fused_cpu
VOCAB = 2500


@pytest.fixture(scope="module")
def model() -> Iterator[FusedModel]:
    model = RandomModel(SHAPE, seed=0).fused()
    yield model
    model.close()


def logits_of(num_rows: int) -> np.ndarray:
    """Rounded, so that many are equal."""
    values = np.random.default_rng(1).standard_normal((num_rows, VOCAB)) * 4
    return np.round(values, 2).astype(np.float32)


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_rows_are_judged_as_torch_judges_them(model: FusedModel, num_top: int) -> None:
    logits, ids = logits_of(40), np.random.default_rng(2).integers(0, VOCAB, 40).tolist()
    before = logits.copy()
    expected = score_rows(torch.from_numpy(logits), ids, num_top)
    found = judge_rows(model, logits, ids, num_top)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.logprob.token_id, ours.logprob.rank) == (
            theirs.logprob.token_id,
            theirs.logprob.rank,
        )
        assert ours.logprob.logprob == pytest.approx(theirs.logprob.logprob, abs=1e-5)
        assert logprobs_of(ours) == pytest.approx(logprobs_of(theirs), abs=1e-5)
    np.testing.assert_array_equal(logits, before)


def logprobs_of(scored: ScoredToken) -> list[float]:
    assert [entry.rank for entry in scored.top_logprobs] == [
        *range(1, len(scored.top_logprobs) + 1)
    ]
    return [entry.logprob for entry in scored.top_logprobs]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_left_to_torch(model: FusedModel, value: float) -> None:
    logits, ids = logits_of(3), [0, 1, 2]
    logits[1, 7] = value
    assert judge_rows(model, logits, ids, 2) == score_rows(torch.from_numpy(logits), ids, 2)


def test_a_judgement_wakes_no_thread_of_torch(
    model: FusedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("torch was asked")

    monkeypatch.setattr("engine.fused_scoring.score_rows", refuse)
    assert len(judge_rows(model, logits_of(2), [5, 6], 1)) == 2
