"""What a request yields depends on the request alone: not on its batch, chunks, blocks, the prefix cache or preemption.

The built-in model, short prompts around block edges. On the torch runner in float32 the drawn tokens are the same (matrix
products of other heights round differently, so log-probabilities agree within LOGPROB_TOLERANCE); on the fused runner every
number is.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.loader.tokenizer import load_tokenizer
from engine.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from tests.engine.real_runners import (
    Answer,
    Bench,
    Call,
    Runner,
    one_torch_thread,
    token_ids,
    with_pool,
)
from tests.kernels.fused_reference import needs_fused_cpu

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

TEXT = (
    "The lighthouse stood on a narrow tongue of rock, a mile from the village. Every evening the keeper climbed its two "
    "hundred and twelve steps, wound the clock that turned the lamp, and wrote the weather in a large book: wind from the "
    "west, rain before midnight, three ships seen at the horizon. On Sundays his daughter rowed out with bread, lamp oil "
    "and letters. She counted the seals on the sandbank and told him how many there were. In the winter of the great storm "
    "the sea broke the pier, and for nineteen days nobody could land. They lived on dried fish and on rain water from the "
    "roof. When the first boat came through, the village had already lit candles for them in the church, and the keeper "
    "asked only whether anyone had missed the light. Nobody had, because it had never gone out."
)
NUM_OUTPUT_TOKENS = 20
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True, logprobs=2)
SEEDED = SamplingParams(
    n=2,
    temperature=0.8,
    top_p=0.95,
    repetition_penalty=1.1,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    seed=11,
    max_tokens=NUM_OUTPUT_TOKENS,
    ignore_eos=True,
    logprobs=3,
)
GREEDY_LENGTHS = (7, 8, 16, 17, 31, 33, 127, 129)
SEEDED_LENGTHS = (9, 16, 31, 33)
AMPLE = {
    "num_blocks": 100,
    "block_size": 16,
    "max_num_batched_tokens": 512,
    "max_num_seqs": 16,
    "num_speculative_tokens": 0,
}
LOGPROB_TOLERANCE = 2e-4
NEAR_TIE = 2e-3


@pytest.fixture(scope="module")
def calls(builtin_model_path: Path) -> list[Call]:
    """Four prompts of two seeded candidates each, one the beginning of the next; then eight greedy ones."""
    words = load_tokenizer(builtin_model_path)(TEXT).input_ids
    greedy = [Call(words[3 * i :][:n], GREEDY) for i, n in enumerate(GREEDY_LENGTHS)]
    seeded = [Call(words[40:][:n], SEEDED) for n in SEEDED_LENGTHS]
    return seeded + greedy


@pytest.fixture(scope="module", params=["torch", pytest.param("fused", marks=needs_fused_cpu)])
def runner(request: pytest.FixtureRequest, builtin_model_path: Path) -> Iterator[Runner]:
    """The weights that all tests use."""
    config = EngineConfig(
        model_path=builtin_model_path,
        model_name="built-in",
        num_blocks=4,
        max_model_len=256,
        dtype="float32" if request.param == "torch" else "auto",
    )
    load = ModelRunner.load if request.param == "torch" else CpuRunner.load
    with one_torch_thread():
        yield load(config, lambda stage, share: None)


@pytest.fixture(scope="module")
def alone(runner: Runner, calls: list[Call]) -> list[Answer]:
    """What every candidate yields in a pool of its own, as a call of one with the candidate's seed."""
    return [bench(runner).answer([single])[0] for call in calls for single in singles(call)]


def singles(call: Call) -> list[Call]:
    """The calls that are as much as the candidates of one: each of one candidate, with that one's seed."""
    if call.params.seed is None:
        return [call]
    seeds = [call.params.seed + index for index in range(call.params.n)]
    return [replace(call, params=replace(call.params, n=1, seed=seed)) for seed in seeds]


def bench(runner: Runner, **limits: Any) -> Bench:
    return Bench(with_pool(runner, **(AMPLE | limits)))


def assert_same(runner: Runner, answers: list[Answer], expected: list[Answer]) -> None:
    """Every number on the fused runner; on the torch runner tokens, and log-probabilities within rounding."""
    assert token_ids(answers) == token_ids(expected)
    if isinstance(runner, CpuRunner):
        assert answers == expected
    for ours, theirs in zip(chain(*answers), chain(*expected), strict=True):
        assert ours.logprob is not None
        assert theirs.logprob is not None
        assert ours.logprob.logprob == pytest.approx(theirs.logprob.logprob, abs=LOGPROB_TOLERANCE)
        assert len(ours.top_logprobs) == len(theirs.top_logprobs)


def test_the_load_is_fit_to_show_it(runner: Runner, alone: list[Answer]) -> None:
    """Every candidate has a text of its own; where rounding differs, no greedy token is a near tie that it could turn."""
    seeded, greedy = alone[:8], alone[8:]
    gaps = [a.top_logprobs[0].logprob - a.top_logprobs[1].logprob for a in chain(*greedy)]
    assert isinstance(runner, CpuRunner) or min(gaps) > NEAR_TIE
    texts = token_ids(seeded)
    assert len({tuple(text) for text in texts}) == 2 * len(SEEDED_LENGTHS)
    assert {len(answer) for answer in alone} == {NUM_OUTPUT_TOKENS}
    assert {len(token.top_logprobs) for token in chain(*seeded)} == {3}


def test_in_a_batch_of_eight(runner: Runner, calls: list[Call], alone: list[Answer]) -> None:
    num_seeded = len(SEEDED_LENGTHS)
    assert_same(runner, bench(runner).answer(calls[:num_seeded]), alone[:8])
    assert_same(runner, bench(runner).answer(calls[num_seeded:]), alone[8:])


@pytest.mark.parametrize("chunk", [16, 64])
def test_in_chunks_of_any_size(
    runner: Runner, calls: list[Call], alone: list[Answer], chunk: int
) -> None:
    """512, the budget of all other tests, takes the load's prompts at once."""
    answers = bench(runner, max_num_batched_tokens=chunk).answer(calls)
    assert_same(runner, answers, alone)


def test_with_drafts(runner: Runner, builtin_model_path: Path) -> None:
    """Texts that begin again, which the model goes on to repeat; and drawn ones, with every penalty."""
    words = load_tokenizer(builtin_model_path)(TEXT).input_ids
    loads = [
        [Call(words[i : i + 60] + words[i : i + n], params)]
        for params in (GREEDY, SEEDED, replace(SEEDED, temperature=0.2, repetition_penalty=1.0))
        for i, n in ((0, 10), (30, 21))
    ]
    loads.append(list(chain(*loads[:4])))
    plain = bench(runner)
    expected = [plain.answer(load) for load in loads]
    assert plain.counters.drafts == 0
    drafting = bench(runner, num_speculative_tokens=11)
    for load, answers in zip(loads, expected, strict=True):
        assert_same(runner, drafting.answer(load), answers)
    counters = drafting.counters
    assert counters.generated_tokens - counters.accepted_tokens < 0.8 * counters.generated_tokens
    assert counters.accepted_tokens < counters.draft_tokens, "none had to be rejected"


def test_without_a_prefix_cache(runner: Runner, calls: list[Call], alone: list[Answer]) -> None:
    engine = bench(runner, enable_prefix_caching=False)
    assert_same(runner, engine.answer(calls), alone)
    assert engine.counters.prefix_hits == 0


def test_from_a_hot_prefix_cache(runner: Runner, calls: list[Call], alone: list[Answer]) -> None:
    engine = bench(runner)
    engine.answer([replace(call, params=replace(call.params, max_tokens=1)) for call in calls])
    before = engine.counters.prefix_hits
    assert_same(runner, engine.answer(calls), alone)
    lengths = [len(call.prompt) for call in calls]
    assert engine.counters.prefix_hits - before >= sum((n - 1) // 16 * 16 for n in lengths)


@pytest.mark.parametrize("block_size", [1, 8, 32, 128])
def test_in_blocks_of_any_size(
    runner: Runner, calls: list[Call], alone: list[Answer], block_size: int
) -> None:
    """Blocks of 16 are those of all other tests."""
    if isinstance(runner, CpuRunner) and block_size % 16:
        pytest.skip("the fused runner takes blocks of multiples of 16 only")
    num_blocks = 1600 // block_size + 16
    engine = bench(runner, block_size=block_size, num_blocks=num_blocks)
    assert_same(runner, engine.answer(calls), alone)
    assert engine.counters.forks == 4
    assert engine.counters.cow_copies == sum(n % block_size != 0 for n in SEEDED_LENGTHS)
    assert engine.counters.preemptions == 0


def test_through_preemptions_in_half_the_memory(
    runner: Runner, calls: list[Call], alone: list[Answer]
) -> None:
    block_size = 16 if isinstance(runner, CpuRunner) else 4
    lengths = [(len(call.prompt) + NUM_OUTPUT_TOKENS, call.params.n) for call in calls]
    load = sum(n * -(-length // block_size) for length, n in lengths)
    engine = bench(runner, block_size=block_size, num_blocks=load // 2)
    assert_same(runner, engine.answer(calls), alone)
    assert engine.counters.preemptions >= 3
