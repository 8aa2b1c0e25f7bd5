"""The whole engine on the Triton kernels (interpreted where there is no GPU): the same tokens as on `reference`."""

import time
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from tests.engine.models.tiny import make_reference

Tokens = dict[tuple[int, int], list[int]]
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [8, 2, 8], [1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_reference("llama", num_hidden_layers=2, eos_token_id=9).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def windowed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose second layer sees five tokens, one more than a block has."""
    path, window = (
        tmp_path_factory.mktemp("windowed"),
        {"sliding_window": 5, "max_window_layers": 1},
    )
    reference = make_reference("qwen2", num_hidden_layers=2, use_sliding_window=True, **window)
    reference.save_pretrained(path)
    return path


def request(request_id: int, prompt: list[int], n: int = 1) -> Request:
    params = SamplingParams(
        n=n, temperature=1.0 if n > 1 else 0.0, seed=5, max_tokens=7, ignore_eos=True
    )
    return Request(request_id, prompt, params, time.monotonic())


def run_engine(folder: Path, backend: str, **options: Any) -> tuple[Tokens, EngineCore]:
    """A busy day in a small pool: requests that join while others run, candidates, a prompt that comes twice."""
    config = EngineConfig(
        model_path=folder,
        model_name="tiny",
        num_blocks=9,
        block_size=4,
        dtype="float32",
        max_num_seqs=6,
        max_num_batched_tokens=12,
        attention_backend=backend,  # type: ignore[arg-type]
        **options,
    )
    runner = ModelRunner.load(config, lambda stage, share: None)
    assert runner.info.attention_backend == backend
    core = EngineCore(Scheduler(runner.scheduler_config), runner)
    arrivals = {
        0: request(0, PROMPTS[0], n=3),
        1: request(1, PROMPTS[1]),
        3: request(2, PROMPTS[2]),
    }
    again = request(3, PROMPTS[0])
    tokens: Tokens = {}
    step = 0
    while core.has_work or step < 4 or again is not None:
        if step in arrivals:
            core.add_request(arrivals[step])
        if again is not None and step > 3 and not core.has_work:
            core.add_request(again)
            again = None
        for output in core.step():
            if output.sampled is not None:
                key = (output.request_id, output.index)
                tokens.setdefault(key, []).append(output.sampled.token_id)
        step += 1
    return tokens, core


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "fp8", "quantization": "int8"},
        {"quantization": "fp8"},
    ],
)
def test_a_busy_day_gives_the_tokens_of_the_reference(
    folder: Path, options: dict[str, str]
) -> None:
    assert_a_busy_day_gives_the_tokens_of_the_reference(folder, options)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [{}, {"kv_cache_dtype": "int8"}])
def test_a_busy_day_of_a_model_with_a_window(
    windowed_folder: Path, options: dict[str, str]
) -> None:
    assert_a_busy_day_gives_the_tokens_of_the_reference(windowed_folder, options)


def assert_a_busy_day_gives_the_tokens_of_the_reference(
    folder: Path, options: dict[str, str]
) -> None:
    expected, _ = run_engine(folder, "reference", **options)
    actual, core = run_engine(folder, "triton", **options)
    counters = core.stats().counters
    assert counters.preemptions > 0
    assert counters.forks == 2
    assert counters.cow_copies > 0
    assert counters.prefix_hits > 0
    assert {key: len(ids) for key, ids in actual.items()} == dict.fromkeys(
        [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (3, 0)], 7
    )
    assert actual == expected
