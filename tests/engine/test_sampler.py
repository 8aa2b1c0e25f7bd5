"""Draws against a slow reference, distributions by chi-square, seeds, penalties and log-probabilities."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.beam_params import BeamParams
from engine.errors import GrammarError
from engine.outputs import Failure, FailureCode, SampledToken, SampleRequest
from engine.sampler import Floats, Sampler, adjust_logits, draw, keep_nucleus, seeded_uniform
from engine.sampling_params import SamplingParams

CHI_SQUARE_0999 = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3}


def request(
    params: SamplingParams,
    *,
    seed: int | None = 1,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    forbidden: tuple[int, ...] = (),
) -> SampleRequest:
    return SampleRequest(0, params, seed, prompt, output, forbidden)


def sample(logits: Sequence[float] | Floats, asked: SampleRequest) -> SampledToken:
    rows = torch.tensor(np.asarray([logits], np.float32))
    return Sampler(None).sample(rows, [asked])[0]


def random_logits(seed: int, size: int, scale: float = 3.0) -> Floats:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(size) * scale).astype(np.float32)


def kept_by_reference(row: Floats, params: SamplingParams) -> dict[int, float]:
    """min_p, then top_k with ties, then top_p, by sorting everything; ids and their shares."""
    scores = row.astype(np.float64) / params.temperature
    weights = np.exp(scores - scores.max())
    order = sorted(range(row.size), key=lambda i: (-row[i], i))
    order = [i for i in order if weights[i] >= params.min_p]
    if 0 < params.top_k < row.size:
        order = [i for i in order if row[i] >= row[order[min(params.top_k, len(order)) - 1]]]
    total = sum(weights[i] for i in order)
    kept, mass = [], 0.0
    for i in order:
        if kept and mass >= params.top_p * total:
            break
        kept.append(i)
        mass += weights[i]
    return {i: weights[i] / mass for i in kept}


def support_of(row: Floats, params: SamplingParams) -> set[int]:
    """Every id that some draw gives: `draw` is asked at many points of the unit interval."""
    return {draw(row, params, u) for u in np.linspace(0, 1, 2_000, endpoint=False)}


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_k=1),
        SamplingParams(top_k=5),
        SamplingParams(top_k=-1, top_p=0.5),
        SamplingParams(top_k=10_000, top_p=0.5),
        SamplingParams(top_p=0.0),
        SamplingParams(top_p=1e-9),
        SamplingParams(top_p=0.999),
        SamplingParams(min_p=0.05),
        SamplingParams(min_p=1.0),
        SamplingParams(min_p=0.02, top_k=9, top_p=0.7),
        SamplingParams(temperature=2.0, top_p=0.95),
        SamplingParams(temperature=0.3, top_p=0.9, top_k=20),
    ],
)
def test_kept_tokens_equal_the_reference(params: SamplingParams) -> None:
    for seed in range(2):
        row = random_logits(seed, 32, scale=1.0)
        assert support_of(row, params) == set(kept_by_reference(row, params))


@pytest.mark.parametrize("scale", [0.0, 0.05, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
def test_a_large_vocabulary_keeps_exactly_the_nucleus(scale: float, top_p: float) -> None:
    row = random_logits(7, 20_000, scale)
    params = SamplingParams(top_p=top_p)
    expected = kept_by_reference(row, params)
    assert kept_of_nucleus(row, top_p) == set(expected)
    assert all(draw(row, params, u) in expected for u in np.linspace(0, 1, 100, endpoint=False))


def kept_of_nucleus(row: Floats, top_p: float) -> set[int]:
    scores = row - row.max()
    weights = np.exp(scores)
    keep_nucleus(scores, weights, top_p)
    return set(np.flatnonzero(weights).tolist())


def test_ties_rank_by_id_in_top_p_and_stay_in_top_k() -> None:
    row = np.zeros(8, np.float32)
    assert support_of(row, SamplingParams(top_p=0.5)) == {0, 1, 2, 3}
    assert support_of(row, SamplingParams(top_k=2)) == set(range(8))


def test_top_k_over_the_small_limit() -> None:
    row = random_logits(3, 4096)
    best = set(np.argsort(-row)[:1000].tolist())
    points = np.random.default_rng(1).random(2000)
    assert {draw(row, SamplingParams(top_k=1000, temperature=2.0), u) for u in points} <= best


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.2),
    ],
)
@pytest.mark.parametrize("seeded", [True, False])
def test_draws_follow_the_distribution(params: SamplingParams, seeded: bool) -> None:
    row = np.array([1.0, 0.2, -0.5, 0.9, 0.0, -1.0, 0.4, 0.3], np.float32)
    share = kept_by_reference(row, params)
    count = 4000
    sampler = Sampler(seed=5)
    requests = [
        request(params, seed=i if seeded else None, output=[0] * (i % 3)) for i in range(count)
    ]
    drawn = Counter(
        s.token_id for s in sampler.sample(torch.tensor(row).expand(count, -1), requests)
    )
    assert set(drawn) == set(share)
    chi = sum((drawn[i] - p * count) ** 2 / (p * count) for i, p in share.items())
    assert chi < CHI_SQUARE_0999[len(share) - 1]


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-4])
def test_greedy_takes_the_first_best_and_draws_nothing(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.sampler.draw", None)
    params = SamplingParams(temperature=temperature, top_p=0.1, top_k=3)
    assert sample([0.0, 2.0, 1.0, 2.0], request(params)).token_id == 1


def test_a_small_temperature_is_finite() -> None:
    params = SamplingParams(temperature=1e-3)
    assert sample(random_logits(0, 100, 50.0), request(params)).token_id == int(
        random_logits(0, 100, 50.0).argmax()
    )


def test_a_seeded_draw_depends_on_seed_and_position_only() -> None:
    rows = torch.tensor(np.stack([random_logits(i, 500) for i in range(16)]))
    params = [
        SamplingParams(temperature=1.5),
        SamplingParams(top_p=0.9),
        SamplingParams(top_k=30),
        SamplingParams(temperature=0.0),
    ]
    requests = [request(params[i % 4], seed=i, output=[1] * i) for i in range(16)]
    together = Sampler(None).sample(rows, requests)
    alone = [Sampler(i).sample(rows[i : i + 1], [requests[i]])[0] for i in range(16)]
    assert together == alone
    backwards = Sampler(None).sample(rows.flip(0), requests[::-1])
    assert together == backwards[::-1]


def test_each_position_of_a_seeded_sequence_has_its_own_draw() -> None:
    requests = [request(SamplingParams(), seed=5, output=[0] * n) for n in range(50)]
    drawn = [s.token_id for s in Sampler(None).sample(torch.zeros(50, 10_000), requests)]
    assert len(set(drawn)) > 45


def test_seeds_and_positions_give_different_numbers() -> None:
    numbers = {seeded_uniform(seed, n) for seed in range(100) for n in range(100)}
    assert len(numbers) == 10_000
    assert all(0 <= u < 1 for u in numbers)
    assert seeded_uniform(-1, 0) == seeded_uniform(2**64 - 1, 0)


def test_without_a_seed_every_run_is_new_unless_the_engine_has_one() -> None:
    rows = torch.zeros(64, 1000)
    requests = [request(SamplingParams(), seed=None)] * 64

    def run(seed: int | None) -> list[int]:
        return [s.token_id for s in Sampler(seed).sample(rows, requests)]

    assert run(None) != run(None)
    assert run(3) == run(3)
    assert run(3) != run(4)


def test_extremes_of_the_unit_interval_give_tokens_with_mass() -> None:
    row = np.full(1000, -200.0, np.float32)
    row[[300, 700]] = 0.0
    assert draw(row, SamplingParams(), 0.0) == 300
    assert draw(row, SamplingParams(), 1 - 2**-53) == 700


def test_penalties_by_hand() -> None:
    row = np.array([2.0, -2.0, 4.0, 1.0, 3.0], np.float32)
    params = SamplingParams(
        repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={3: 7.0}
    )
    asked = request(params, prompt=[0, 1, 0], output=[2, 3, 2], forbidden=(4,))
    # 0 and 1: prompt only; 2: 4/2 - .5 - 2*.25; 3: (1+7)/2 - .5 - .25
    assert adjust_logits(row, asked)[:4].tolist() == [1.0, -4.0, 1.0, 3.25]
    assert sample(row, replace_params(asked, temperature=0.0)).token_id == 3
    assert row.tolist() == [2.0, -2.0, 4.0, 1.0, 3.0]


def replace_params(asked: SampleRequest, **changes: float) -> SampleRequest:
    return replace(asked, params=replace(asked.params, **changes))


def test_each_row_has_its_own_penalties() -> None:
    rows = torch.tensor([[3.0, 2.0, 1.0]] * 3)
    greedy = SamplingParams(temperature=0.0, presence_penalty=2.0)
    asked = [
        request(greedy, output=[0]),
        request(SamplingParams(temperature=0.0), output=[0]),
        request(greedy, output=[]),
    ]
    assert [s.token_id for s in Sampler(None).sample(rows, asked)] == [1, 0, 0]


def test_forbidden_tokens_are_never_drawn() -> None:
    params = SamplingParams(temperature=2.0, logit_bias={0: 100.0})
    asked = [request(params, seed=i, forbidden=(0, 2)) for i in range(200)]
    drawn = {s.token_id for s in Sampler(None).sample(torch.zeros(200, 4), asked)}
    assert drawn == {1, 3}


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_logprobs_are_raw_and_ranked(temperature: float) -> None:
    row = random_logits(11, 200)
    params = SamplingParams(
        temperature=temperature, logprobs=5, logit_bias={150: 100.0}, top_k=1, top_p=0.5
    )
    result = sample(row, request(params))
    expected = torch.log_softmax(torch.tensor(row, dtype=torch.float64), 0)
    order = torch.argsort(expected, descending=True).tolist()
    assert result.token_id == 150
    assert result.logprob is not None
    assert result.logprob.token_id == 150
    assert result.logprob.rank == order.index(150) + 1
    assert result.logprob.logprob == pytest.approx(expected[150].item(), abs=1e-5)
    assert [t.token_id for t in result.top_logprobs] == order[:5]
    assert [t.rank for t in result.top_logprobs] == [1, 2, 3, 4, 5]
    for top in result.top_logprobs:
        assert top.logprob == pytest.approx(expected[top.token_id].item(), abs=1e-5)


def test_logprobs_zero_gives_the_sampled_token_alone_and_none_gives_nothing() -> None:
    row = random_logits(0, 10)
    asked = sample(row, request(SamplingParams(logprobs=0)))
    assert asked.logprob is not None
    assert asked.top_logprobs == ()
    assert sample(row, request(SamplingParams())).logprob is None


def test_logprobs_are_finite_whatever_the_logits() -> None:
    row = np.array([0.0, -math.inf, -1e30, 5.0], np.float32)
    result = sample(row, request(SamplingParams(logprobs=20, temperature=0.0)))
    assert len(result.top_logprobs) == 4
    assert all(-9999.0 <= t.logprob <= 0.0 for t in result.top_logprobs)


def test_failed_arithmetic_of_one_row_stays_in_that_row(caplog: pytest.LogCaptureFixture) -> None:
    rows = torch.tensor([[math.nan, 1.0, 0.0], [math.nan] * 3, [0.0, 9.0, 0.0]])
    greedy = request(SamplingParams(temperature=0.0))
    drawn = Sampler(None).sample(rows, [greedy, request(SamplingParams(logprobs=1)), greedy])
    assert [drawn[0].token_id, drawn[2].token_id] == [1, 1]
    assert "not finite" in caplog.text


def test_half_precision_logits_are_taken() -> None:
    rows = torch.tensor([[0.0, 1.0, 3.0]], dtype=torch.bfloat16)
    assert Sampler(None).sample(rows, [request(SamplingParams(temperature=0.0))])[0].token_id == 2


def test_a_beam_search_gets_its_candidates_of_the_raw_distribution_and_draws_nothing() -> None:
    logits = random_logits(3, 50)
    log_probs = torch.log_softmax(torch.from_numpy(logits), -1)
    params = SamplingParams(logprobs=2, beams=BeamParams(width=3))
    token = sample(logits, replace(request(params), num_candidates=4))
    values, ids = log_probs.topk(4)
    assert [entry.token_id for entry in token.top_logprobs] == ids.tolist()
    assert [entry.logprob for entry in token.top_logprobs] == pytest.approx(values.tolist())
    assert token.token_id == int(ids[0])
    wide = sample(logits, replace(request(replace(params, logprobs=9)), num_candidates=4))
    assert len(wide.top_logprobs) == 9
    all_ids = sample(logits[:3], replace(request(params), num_candidates=4))
    assert len(all_ids.top_logprobs) == 3


# --- grammars ------------------------------------------------------------------------------------


NO_WAY_ON = Failure("the grammar cannot go on: no way on", FailureCode.GRAMMAR)


class FixedMatcher:
    """Allows the same ids at every position, or gives up."""

    def __init__(self, *token_ids: int) -> None:
        self.mask = sum(1 << token_id for token_id in token_ids).to_bytes(8, "little")

    def allowed(self, output_token_ids: Sequence[int]) -> bytes:
        if not any(self.mask):
            raise GrammarError("no way on")
        return self.mask


def under(matcher: FixedMatcher, params: SamplingParams, **others: Any) -> SampleRequest:
    return replace(request(params, **others), matcher=matcher)


def draw_all(rows: torch.Tensor, asked: Sequence[SampleRequest]) -> list[SampledToken]:
    sampler = Sampler(0)
    sampler.prepare(asked)
    return sampler.sample(rows, asked)


def test_under_a_grammar_the_rest_of_the_distribution_is_drawn_from_as_it_is() -> None:
    logits, ids = random_logits(3, 60), (2, 7, 11, 30, 59)
    params = SamplingParams(temperature=0.9)
    asked = [replace(under(FixedMatcher(*ids), params, seed=s), seq_id=s) for s in range(4000)]
    counts = Counter(t.token_id for t in draw_all(torch.tensor(logits).expand(4000, -1), asked))
    weights = np.exp(logits[list(ids)].astype(np.float64) / 0.9)
    expected = dict(zip(ids, 4000 * weights / weights.sum(), strict=True))
    assert counts.keys() <= set(ids)
    square = sum((counts[i] - expected[i]) ** 2 / expected[i] for i in ids)
    assert square < CHI_SQUARE_0999[len(ids) - 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_one_token_that_a_grammar_allows_is_drawn_whatever_speaks_against_it(
    temperature: float,
) -> None:
    params = SamplingParams(temperature=temperature, logit_bias={5: -100.0}, top_k=1)
    asked = under(FixedMatcher(5), params, forbidden=(5,))
    rows = torch.tensor(random_logits(1, 60)[None])
    assert draw_all(rows, [asked])[0].token_id == 5


def test_a_forbidden_end_is_not_drawn_while_the_grammar_allows_more() -> None:
    params = SamplingParams(temperature=1.0)
    asked = [
        replace(under(FixedMatcher(4, 6), params, seed=s, forbidden=(4,)), seq_id=s)
        for s in range(50)
    ]
    drawn = draw_all(torch.tensor([0.0] * 4 + [9.0, 0.0, -5.0, 0.0]).expand(50, -1), asked)
    assert {token.token_id for token in drawn} == {6}


def test_bias_and_penalties_work_among_what_is_allowed_and_logprobs_are_of_the_raw_logits() -> None:
    params = SamplingParams(temperature=0.0, logit_bias={3: 4.0}, logprobs=1, presence_penalty=2.0)
    logits = [5.0, 1.0, 2.0, 0.0]
    asked = under(FixedMatcher(1, 2, 3), params, output=[2])
    (token,) = draw_all(torch.tensor([logits]), [asked])
    free = sample(logits, request(replace(params, logit_bias={3: 90.0})))
    assert token == free
    assert token.token_id == 3
    assert token.top_logprobs[0].token_id == 0


def test_a_grammar_that_gives_up_is_told_and_does_not_touch_its_neighbours() -> None:
    greedy = SamplingParams(temperature=0.0)
    asked = [
        request(greedy),
        replace(under(FixedMatcher(), greedy), seq_id=1),
        replace(under(FixedMatcher(0), greedy), seq_id=2),
    ]
    drawn = draw_all(torch.tensor([[0.0, 1.0]]).expand(3, -1), asked)
    assert [token.token_id for token in drawn] == [1, -1, 0]
    assert [token.error for token in drawn] == [None, NO_WAY_ON, None]
