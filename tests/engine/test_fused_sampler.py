"""Draws with the fused step's threads: the tokens and log-probabilities of the host's sampler, whatever is asked."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.draws import Draws
from engine.fused_sampler import FusedSampler
from engine.outputs import SampledToken, SampleRequest
from engine.sampler import Sampler, changed_ids
from engine.sampling_params import SamplingParams
from kernels.cpu.fused.model import FusedModel
from kernels.cpu.fused.sampling import DRAW
from tests.engine.test_sampler import NO_WAY_ON, FixedMatcher
from tests.kernels.fused_reference import RandomModel, needs_fused_cpu
from tests.kernels.test_fused_sampling import SHAPE

pytestmark = needs_fused_cpu
VOCAB = 2500


@pytest.fixture(scope="module")
def model() -> Iterator[FusedModel]:
    model = RandomModel(SHAPE, seed=0).fused()
    yield model
    model.close()


def request(seed: int | None = 0, **params: Any) -> SampleRequest:
    return SampleRequest(0, SamplingParams(**params), seed, [1, 2, 7, 1], [3, 7, 3])


def random_request(draw: random.Random, seed: int) -> SampleRequest:
    asked = request(
        seed,
        temperature=draw.choice([0.0, 0.3, 1.0, 2.0]),
        top_p=draw.choice([1.0, 1.0, 0.9, 0.3, 0.01]),
        top_k=draw.choice([0, -1, 1, 5, 50, 3000, 2**63]),
        min_p=draw.choice([0.0, 0.0, 0.05, 1.0]),
        repetition_penalty=draw.choice([1.0, 1.0, 1.3]),
        presence_penalty=draw.choice([0.0, 0.0, 1.5]),
        frequency_penalty=draw.choice([0.0, 0.0, -0.7]),
        logit_bias=draw.choice([{}, {}, {7: 3.0, 11: -4.0, 12: 20.0}]),
        logprobs=draw.choice([None, None, 0, 2, 20]),
    )
    return replace(
        asked,
        forbidden_token_ids=draw.choice([(), (5, 12)]),
        num_candidates=draw.choice([0, 0, 6]),
    )


def logits_of(num_rows: int, seed: int = 1) -> torch.Tensor:
    return torch.randn((num_rows, VOCAB), generator=torch.Generator().manual_seed(seed)) * 4


def assert_same(actual: Sequence[SampledToken], expected: Sequence[SampledToken]) -> None:
    """The same tokens and ranks, and log-probabilities that differ in the last bits of a float32 at most."""
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.token_id == theirs.token_id
        assert (ours.logprob is None) == (theirs.logprob is None)
        pairs = zip(
            [ours.logprob, *ours.top_logprobs], [theirs.logprob, *theirs.top_logprobs], strict=True
        )
        for our, their in pairs:
            if our is not None and their is not None:
                assert (our.token_id, our.rank) == (their.token_id, their.rank)
                assert our.logprob == pytest.approx(their.logprob, abs=1e-5)


def test_draws_are_those_of_the_host(model: FusedModel) -> None:
    draw = random.Random(2)
    asked = [random_request(draw, seed) for seed in range(400)]
    logits = logits_of(len(asked))
    before = logits.clone()
    expected = Sampler(None).sample(logits, asked)
    assert_same(FusedSampler(Sampler(None), model).sample(logits, asked), expected)
    assert torch.equal(logits, before), "what requests change is taken back"
    assert len({token.token_id for token in expected}) > 100


def test_unseeded_draws_come_from_the_generator_of_the_engines_seed(model: FusedModel) -> None:
    asked, logits = [request(None)] * 50, torch.zeros((50, VOCAB))
    runs = [FusedSampler(Sampler(seed), model).sample(logits, asked) for seed in (5, 5, 6)]
    assert runs[0] == runs[1] == Sampler(5).sample(logits, asked)
    assert runs[0] != runs[2]


def test_a_row_does_not_depend_on_the_others(model: FusedModel) -> None:
    draw = random.Random(7)
    asked = [random_request(draw, seed) for seed in range(30)]
    logits, sampler = logits_of(30), FusedSampler(Sampler(None), model)
    alone = [sampler.sample(logits[i : i + 1], [asked[i]])[0] for i in range(30)]
    assert sampler.sample(logits, asked) == alone


class ManyMatcher:
    """Allows the same ids at every position."""

    def __init__(self, allowed: np.ndarray) -> None:
        self.mask = np.packbits(allowed, bitorder="little").tobytes()

    def allowed(self, output_token_ids: Sequence[int]) -> bytes:
        return self.mask


def random_matcher(draw: random.Random, seed: int) -> FixedMatcher | ManyMatcher | None:
    few = FixedMatcher(*draw.sample(range(60), draw.choice([1, 2, 20])))
    share = draw.choice([0.01, 0.5, 1.0])
    many = ManyMatcher(np.random.default_rng(seed).random(VOCAB) < share)
    return draw.choice([few, many, None])


def draw_all(
    sampler: Sampler | FusedSampler, logits: torch.Tensor, asked: Sequence[SampleRequest]
) -> list[SampledToken]:
    sampler.prepare(asked)
    return sampler.sample(logits, asked)


def test_draws_under_grammars_are_those_of_the_host(model: FusedModel) -> None:
    draw = random.Random(3)
    asked = [
        replace(random_request(draw, seed), seq_id=seed, matcher=random_matcher(draw, seed))
        for seed in range(400)
    ]
    logits = logits_of(len(asked))
    before = logits.clone()
    expected = draw_all(Sampler(None), logits, asked)
    assert_same(draw_all(FusedSampler(Sampler(None), model), logits, asked), expected)
    assert torch.equal(logits, before), "what a mask hides is still there"


def test_no_row_under_a_grammar_that_goes_on_is_left_to_the_host(model: FusedModel) -> None:
    class Host(Sampler):
        def sample_among(self, logits: torch.Tensor, requests: Any, allowed: Any) -> Any:
            assert [r.seq_id for r in requests] == [2], "drawn row by row"
            return super().sample_among(logits, requests, allowed)

    matchers = (FixedMatcher(4, 9), None, FixedMatcher(), FixedMatcher(8))
    asked = [replace(request(3), matcher=m, seq_id=i) for i, m in enumerate(matchers)]
    tokens = draw_all(FusedSampler(Host(None), model), logits_of(4), asked)
    assert tokens[0].token_id in (4, 9)
    assert tokens[1] == Sampler(None).sample(logits_of(4)[1:2], asked[1:2])[0]
    assert (tokens[2].token_id, tokens[2].error) == (-1, NO_WAY_ON)
    assert tokens[3].token_id == 8


def test_logits_that_are_not_finite_end_in_the_log(
    model: FusedModel, caplog: pytest.LogCaptureFixture
) -> None:
    logits = logits_of(3)
    logits[1] = torch.nan
    asked = [request(temperature=0.0, logprobs=1) for _ in range(3)]
    tokens = FusedSampler(Sampler(None), model).sample(logits, asked)
    assert [t.token_id for t in (tokens[0], tokens[2])] == logits[[0, 2]].argmax(1).tolist()
    assert tokens[1] == Sampler(None).sample(logits[1:2], asked[1:2])[0]
    assert "not finite" in caplog.text


def test_what_a_failed_draw_changed_is_taken_back(model: FusedModel) -> None:
    class Broken:
        def draw(self, logits: np.ndarray, records: np.ndarray) -> np.ndarray:
            raise RuntimeError("no draw")

        def rank(self, logits: np.ndarray, records: np.ndarray) -> None:
            raise AssertionError

    logits = logits_of(1)
    before = logits.clone()
    with pytest.raises(RuntimeError, match="no draw"):
        FusedSampler(Sampler(None), Broken()).sample(logits, [request(logit_bias={3: 5.0})])
    assert torch.equal(logits, before)


def plain(asked: SampleRequest) -> SampleRequest:
    """The same without what changes its row or hides some of it."""
    unchanged = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    params = replace(asked.params, logit_bias={}, **unchanged)
    return replace(asked, params=params, forbidden_token_ids=(), matcher=None)


class Step:
    """Stands for the step: draws from its logits, of a row for each source."""

    def __init__(self, model: FusedModel, logits: torch.Tensor) -> None:
        self.model, self.logits, self.records = model, logits.numpy(), np.zeros(0, DRAW)

    def run(self, sampler: FusedSampler, draws: Draws) -> torch.Tensor:
        sampler.prepare(draws.requests)
        self.records = sampler.draws_of_step(draws)
        self.model.draw(self.logits, self.records)
        return torch.from_numpy(self.logits[draws.sources])


def test_what_the_step_draws_is_what_the_host_draws(model: FusedModel) -> None:
    """Candidates share rows; those with a grammar or changes to their row are drawn behind the step."""
    draw = random.Random(11)
    asked = [
        replace(random_request(draw, seed), seq_id=seed, matcher=random_matcher(draw, seed))
        for seed in range(300)
    ]
    asked[::2] = [plain(each) for each in asked[::2]]
    sources = [row // 3 for row in range(300)]
    rows, draws = logits_of(100), Draws(list(range(100)), asked, sources)
    step, sampler = Step(model, rows), FusedSampler(Sampler(None), model)
    logits = step.run(sampler, draws)
    expected = draw_all(Sampler(None), rows[sources], asked)
    assert_same(sampler.sample(logits, asked), expected)
    count = sum(each.matcher is None and not changed_ids(each) for each in asked)
    assert 150 <= len(step.records) == count < 200
    assert_same(draw_all(sampler, logits, asked), expected)  # nothing of the step is left


def test_a_row_that_the_step_could_not_draw_from_is_left_to_the_host(
    model: FusedModel, caplog: pytest.LogCaptureFixture
) -> None:
    logits = logits_of(2)
    logits[1] = torch.inf
    asked = [request(temperature=0.0), request(temperature=0.0)]
    sampler = FusedSampler(Sampler(None), model)
    rows = Step(model, logits).run(sampler, Draws([0, 1], asked, [0, 1]))
    assert sampler.sample(rows, asked) == Sampler(None).sample(logits, asked)
    assert "not finite" in caplog.text
