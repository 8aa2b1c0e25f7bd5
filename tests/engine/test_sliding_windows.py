"""Models whose layers see a window, beyond it: the tokens are those of transformers, however memory is shared and steps are cut.

In float32, on the torch runner. Blocks that nobody wrote hold NaN.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from engine.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from tests.engine.models.tiny import VOCAB_SIZE, make_reference, reference_logits
from tests.engine.real_runners import Bench, Call, one_torch_thread, token_ids, with_pool
from tests.engine.tiny_runners import QUIET, config

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "all layers": ("mistral", {"sliding_window": 7}),
    "some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
}
NUM_OUTPUT_TOKENS = 15
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
SEEDED = SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
WORDS = [int(i * i * 7 + i * 3) % VOCAB_SIZE for i in range(60)]
PROMPTS = [WORDS[:n] for n in (6, 7, 8, 33)] + [WORDS[5:40]]
CALLS = [*(Call(prompt, GREEDY) for prompt in PROMPTS), Call(WORDS[20:42], SEEDED)]
AMPLE = {"num_blocks": 80, "block_size": 4, "max_num_batched_tokens": 256, "max_num_seqs": 8}


@pytest.fixture(scope="module", params=MODELS)
def reference(request: pytest.FixtureRequest) -> PreTrainedModel:
    model_type, changes = MODELS[request.param]
    return make_reference(model_type, **changes)


@pytest.fixture(scope="module")
def runner(reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    path: Path = tmp_path_factory.mktemp("windowed")
    reference.save_pretrained(path)
    with one_torch_thread():
        return ModelRunner.load(config(path, dtype="float32"), **QUIET)


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> list[list[int]]:
    """What each call yields in a pool of its own."""
    return [ids for call in CALLS for ids in token_ids(bench(runner).answer([call]))]


def bench(runner: ModelRunner, **limits: Any) -> Bench:
    return Bench(with_pool(runner, **(AMPLE | limits)))


def greedy(model: PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    """transformers' text: every token from all of the text before it."""
    ids = list(prompt)
    for _ in range(NUM_OUTPUT_TOKENS):
        ids.append(int(reference_logits(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


def test_greedy_texts_are_those_of_transformers(
    reference: PreTrainedModel, alone: list[list[int]]
) -> None:
    assert alone[: len(PROMPTS)] == [greedy(reference, prompt) for prompt in PROMPTS]


def test_the_window_makes_a_difference(alone: list[list[int]], reference: PreTrainedModel) -> None:
    changes = {"use_sliding_window": False, "sliding_window": None}
    model = make_reference(reference.config.model_type, **changes)
    assert alone[3] != greedy(model, PROMPTS[3])


@pytest.mark.parametrize("chunk", [8, 13])
def test_in_one_batch_of_chunks(runner: ModelRunner, alone: list[list[int]], chunk: int) -> None:
    assert token_ids(bench(runner, max_num_batched_tokens=chunk).answer(CALLS)) == alone


@pytest.mark.parametrize("block_size", [1, 7, 16])
def test_in_blocks_of_any_size(
    runner: ModelRunner, alone: list[list[int]], block_size: int
) -> None:
    engine = bench(runner, block_size=block_size, num_blocks=320 // block_size)
    assert token_ids(engine.answer(CALLS)) == alone
    assert engine.counters.forks == 2


def test_from_a_hot_prefix_cache(runner: ModelRunner, alone: list[list[int]]) -> None:
    engine = bench(runner)
    engine.answer(CALLS)
    before = engine.counters.prefix_hits
    assert token_ids(engine.answer(CALLS)) == alone
    lengths = [len(call.prompt) for call in CALLS]
    assert engine.counters.prefix_hits - before >= sum((n - 1) // 4 * 4 for n in lengths)


def test_through_preemptions(runner: ModelRunner, alone: list[list[int]]) -> None:
    engine = bench(runner, num_blocks=24)
    assert token_ids(engine.answer(CALLS)) == alone
    assert engine.counters.preemptions >= 3
