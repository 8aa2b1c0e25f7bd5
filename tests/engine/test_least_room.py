"""Pools and contexts in which nothing could ever be answered."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.admission import check_request
from engine.chat_template import DEFAULT_OPTIONS, TemplateOptions
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError, RequestError
from engine.least_room import SHORTEST_CHAT, check_options, check_pool, least_tokens
from engine.loading import load_model
from engine.sampling_params import SamplingParams
from tests.engine.rig import Letters
from tests.fakes import make_config

CONFIG = EngineConfig(model_path=Path("nowhere"), model_name="fake")


class Wordy(Letters):
    """Its template makes 31 tokens of a letter, or refuses it."""

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__()
        self.refuses = refuses

    def render_chat(
        self, messages: Sequence[Mapping[str, object]], options: TemplateOptions = DEFAULT_OPTIONS
    ) -> list[int]:
        if self.refuses:
            raise RequestError("no", param="messages")
        assert tuple(messages) == SHORTEST_CHAT
        return [5] * 31


def test_the_shortest_chat_and_a_token_of_its_answer() -> None:
    assert least_tokens(Wordy()) == 32
    assert least_tokens(Wordy(refuses=True)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 1}, "--num-blocks: 1 is not allowed; at least 2 of --block-size 16"),
        (
            {"num_blocks": 31, "block_size": 1},
            "--num-blocks: 31 is not allowed; at least 32 of --block-size 1",
        ),
        ({"max_model_len": 31}, "--max-model-len: 31 is not allowed; at least 32"),
    ],
)
def test_too_little_is_refused_with_the_option_and_the_least(
    options: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_options(replace(CONFIG, **options), 32)
    assert str(refused.value) == f"{message}: the shortest chat with this model takes 32 tokens"


def test_the_least_is_enough() -> None:
    check_options(replace(CONFIG, num_blocks=2, max_model_len=32), 32)
    config = make_config(block_size=16, num_blocks=2)
    check_pool(CONFIG, config, 32, "")
    check_request(config, [5] * 31, SamplingParams(max_tokens=1))


def test_memory_that_holds_too_little_is_told_with_what_would_do() -> None:
    config = make_config(block_size=16, num_blocks=1, bytes_per_token=10)
    with pytest.raises(ConfigError) as asked:
        check_pool(replace(CONFIG, kv_cache_memory=200), config, 32, "--kv-cache-memory 200")
    assert str(asked.value) == (
        "--kv-cache-memory: 200 is not allowed; at least 320: the shortest chat with this model takes 32 tokens"
    )
    with pytest.raises(ModelLoadError) as refused:
        check_pool(CONFIG, config, 32, "chosen from 1 MiB of free memory")
    assert str(refused.value) == (
        "the KV pool holds 16 tokens (chosen from 1 MiB of free memory); the shortest chat with this model takes 32: "
        "at least --kv-cache-memory 320, or --num-blocks 2, is needed"
    )


@pytest.mark.model
def test_a_pool_of_one_block_stops_the_start(builtin_model_path: Path) -> None:
    config = replace(CONFIG, model_path=builtin_model_path, num_blocks=1)
    with pytest.raises(ConfigError, match=r"^--num-blocks: 1 is not allowed; at least \d+ of"):
        load_model(config, lambda stage, share: None)
