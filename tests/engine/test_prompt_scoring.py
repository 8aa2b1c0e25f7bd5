"""Log-probabilities of prompts on the two runners: against transformers, in chunks, in company, after preemptions."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from engine.cpu_runner import CpuRunner
from engine.engine_core import EngineCore
from engine.loader.tokenizer import load_tokenizer
from engine.model_runner import ModelRunner
from engine.outputs import (
    SampledToken,
    SampleRequest,
    ScheduledSequence,
    ScoredToken,
    ScoreRequest,
    TokenLogprob,
)
from engine.prompt_scoring import score_rows, split_scored
from engine.sampler import MIN_LOGPROB, Sampler
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from tests.engine.models.tiny import VOCAB_SIZE, reference_logits
from tests.engine.tiny_runners import QUIET, config
from tests.kernels.fused_reference import needs_fused_cpu

RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(0, VOCAB_SIZE, length).tolist() for length in (1, 2, 16, 17, 47)]
Runner = ModelRunner | CpuRunner


class Load:
    """Requests in a scheduler of its own over a runner; `scores` and `drawn` by request."""

    def __init__(self, runner: Runner, budget: int) -> None:
        limits = replace(runner.scheduler_config, max_num_batched_tokens=budget)
        self.scheduler = Scheduler(limits)
        self.core = EngineCore(self.scheduler, runner)
        self.ids = itertools.count()
        self.scores: dict[int, tuple[ScoredToken, ...]] = {}
        self.drawn: dict[int, list[SampledToken]] = {}

    def add(self, prompt: Sequence[int], **params: Any) -> int:
        params_ = SamplingParams(ignore_eos=True, seed=1, **params)
        request = Request(next(self.ids), list(prompt), params_, 0.0)
        self.scheduler.add_request(request)
        self.drawn[request.request_id] = []
        return request.request_id

    def step(self) -> None:
        for output in self.core.step():
            if output.prompt_scores is not None:
                told = self.scores.get(output.request_id, ())
                self.scores[output.request_id] = told + output.prompt_scores
            if output.sampled is not None:
                self.drawn[output.request_id].append(output.sampled)

    def preempt(self, choice: int) -> None:
        """Push somebody out, if anybody runs."""
        running = self.scheduler._roster.running
        if running:
            self.scheduler._planner.preempt(running[choice % len(running)])

    def run(self) -> "Load":
        while self.core.has_work:
            self.step()
        return self


def judge(runner: Runner, prompts: Sequence[Sequence[int]], budget: int = 64) -> list:
    """The scores of all prompts, computed together."""
    load = Load(runner, budget)
    ids = [load.add(prompt, max_tokens=0, prompt_logprobs=3) for prompt in prompts]
    load.run()
    return [load.scores[i] for i in ids]


def values(scores: Sequence[ScoredToken]) -> list[float]:
    return [score.logprob.logprob for score in scores]


def test_a_row_is_judged_as_the_sampler_judges_what_it_draws() -> None:
    logits = torch.from_numpy(np.random.default_rng(1).normal(0, 3, (20, 300)).astype(np.float32))
    requests = [
        SampleRequest(row, SamplingParams(logprobs=4, seed=row), row, (), ()) for row in range(20)
    ]
    drawn = Sampler(0).sample(logits, requests)
    scored = score_rows(logits, [token.token_id for token in drawn], 4)
    for token, score in zip(drawn, scored, strict=True):
        assert token.logprob is not None
        assert (score.logprob.token_id, score.logprob.rank) == (token.token_id, token.logprob.rank)
        assert score.logprob.logprob == pytest.approx(token.logprob.logprob, abs=1e-6)
        ours, theirs = score.top_logprobs, token.top_logprobs
        assert [t.token_id for t in ours] == [t.token_id for t in theirs]
        assert [t.rank for t in ours] == [1, 2, 3, 4]
        np.testing.assert_allclose(
            [t.logprob for t in ours], [t.logprob for t in theirs], atol=1e-6
        )


def test_equal_logits_rank_by_id_and_nothing_is_infinite() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, -math.inf], [math.nan, 0.0, 0.0, 0.0]])
    first, second = score_rows(logits, [2, 1], 4)
    assert first.logprob.rank == 2
    assert [t.token_id for t in first.top_logprobs] == [1, 2, 0, 3]
    assert first.top_logprobs[3] == TokenLogprob(3, MIN_LOGPROB, 4)
    assert second.logprob.logprob == MIN_LOGPROB


def run_of(num_tokens: int, score: ScoreRequest | None) -> ScheduledSequence:
    return ScheduledSequence(7, list(range(num_tokens)), 100, [1, 2], (), score=score)


@pytest.mark.parametrize(
    ("num_tokens", "num_scored", "parts", "left"),
    [
        (5, 5, [(100, 2), (102, 2), (104, 1)], None),
        (5, 4, [(100, 2), (102, 2)], (104, 1)),
        (5, 1, [(100, 1)], (101, 4)),
    ],
)
def test_runs_are_cut_where_rows_are_judged(
    num_tokens: int, num_scored: int, parts: list[tuple[int, int]], left: tuple[int, int] | None
) -> None:
    plain = run_of(3, None)
    scored = run_of(num_tokens, ScoreRequest(list(range(20, 20 + num_scored)), 1))
    runs, rest = split_scored([plain, scored], 2)
    assert [(run.start_position, len(run.token_ids)) for run in runs] == parts
    assert [i for run in runs if run.score for i in run.score.token_ids] == list(
        range(20, 20 + num_scored)
    )
    assert rest[0] is plain
    assert [(run.start_position, len(run.token_ids)) for run in rest[1:]] == (
        [left] if left else []
    )
    assert all(run.score is None for run in rest)


@pytest.mark.parametrize("budget", [1, 7, 16, 64])
def test_float32_equals_transformers_in_any_chunks(
    exact: ModelRunner, reference: PreTrainedModel, budget: int
) -> None:
    for prompt, scores in zip(PROMPTS, judge(exact, PROMPTS, budget), strict=True):
        expected = reference_logits(reference, prompt).log_softmax(-1)
        assert [score.logprob.token_id for score in scores] == prompt[1:]
        chosen = [float(row[i]) for row, i in zip(expected, prompt[1:], strict=False)]
        np.testing.assert_allclose(values(scores), chosen, atol=2e-4)
        best = expected.topk(3).indices.tolist()
        assert [[t.token_id for t in s.top_logprobs] for s in scores] == best[:-1]


def test_a_long_chunk_is_judged_in_parts(exact: ModelRunner, reference: PreTrainedModel) -> None:
    prompt = [PROMPTS[-1] + PROMPTS[-2]]
    (scores,) = judge(exact, prompt, 64)
    expected = reference_logits(reference, prompt[0]).log_softmax(-1)
    chosen = [float(row[i]) for row, i in zip(expected, prompt[0][1:], strict=False)]
    np.testing.assert_allclose(values(scores), chosen, atol=2e-4)


@needs_fused_cpu
def test_the_fused_runner_is_close(fused: CpuRunner, exact: ModelRunner) -> None:
    for ours, theirs in zip(judge(fused, PROMPTS), judge(exact, PROMPTS), strict=True):
        assert len(ours) == len(theirs)
        np.testing.assert_allclose(values(ours), values(theirs), atol=0.35)


@needs_fused_cpu
def test_what_was_drawn_is_judged_the_same_on_the_fused_runner(fused: CpuRunner) -> None:
    load = Load(fused, 64)
    answered = load.add(PROMPTS[2], max_tokens=12, logprobs=0)
    drawn = load.run().drawn[answered]
    (scores,) = judge(fused, [PROMPTS[2] + [token.token_id for token in drawn]])
    logprobs = [token.logprob.logprob for token in drawn if token.logprob]
    np.testing.assert_allclose(values(scores)[-12:], logprobs, atol=1e-6)


@needs_fused_cpu
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_nothing_but_the_prompt_changes_a_bit_on_the_fused_runner(fused: CpuRunner, data) -> None:
    alone = [judge(fused, [prompt])[0] for prompt in PROMPTS]
    load = Load(fused, data.draw(st.integers(1, 64), label="budget"))
    ids: dict[int, int] = {}
    for index in data.draw(st.permutations(range(len(PROMPTS)))):
        num_tokens = data.draw(st.integers(0, 6))
        if data.draw(st.booleans()):
            load.add(PROMPTS[index], max_tokens=num_tokens)
        ids[load.add(PROMPTS[index], max_tokens=num_tokens, prompt_logprobs=3)] = index
        for choice in data.draw(st.lists(st.none() | st.integers(0, 7), max_size=4)):
            load.step() if choice is None else load.preempt(choice)
    load.run()
    assert set(load.scores) == set(ids)
    for request_id, scores in load.scores.items():
        assert scores == alone[ids[request_id]]


@pytest.mark.parametrize("kind", ["exact", pytest.param("fused", marks=needs_fused_cpu)])
def test_answers_after_and_beside_judged_prompts_stay_the_same(
    kind: str, request: pytest.FixtureRequest
) -> None:
    runner: Runner = request.getfixturevalue(kind)

    def texts(**scored: int) -> list[list[int]]:
        load = Load(runner, 16)
        load.add(PROMPTS[2], max_tokens=10)
        for prompt in PROMPTS:
            load.add(prompt, max_tokens=6, **scored)
        load.run()
        return [[token.token_id for token in drawn] for drawn in load.drawn.values()]

    assert [len(text) for text in texts()] == [10, 6, 6, 6, 6, 6]
    assert texts(prompt_logprobs=0) == texts()


@needs_fused_cpu
@pytest.mark.model
def test_the_builtin_model_on_both_runners(builtin_model_path: Path) -> None:
    text = "Bread is baked from flour, water, yeast and salt. " * 3
    prompt = list(load_tokenizer(builtin_model_path).encode(text))
    options = config(builtin_model_path, max_model_len=256, num_blocks=64)
    (exact,) = judge(ModelRunner.load(replace(options, dtype="float32"), **QUIET), [prompt])
    runner = CpuRunner.load(options, **QUIET)
    (ours,), (in_chunks,) = judge(runner, [prompt]), judge(runner, [prompt], budget=13)
    runner.close()
    assert ours == in_chunks
    assert abs(sum(values(ours)) - sum(values(exact))) / len(ours) < 0.05
