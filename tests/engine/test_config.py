"""Options that cannot work: each names itself, its value and what is allowed."""

from pathlib import Path
from typing import Any

import pytest

from engine.config import RANGES, ByteSize, EngineConfig
from engine.errors import ConfigError


def options(**changes: Any) -> EngineConfig:
    return EngineConfig(model_path=Path("model"), model_name="model", **changes)


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        options(**changes)
    return str(caught.value)


@pytest.mark.parametrize("field", RANGES)
def test_a_number_beyond_its_range_is_refused_at_both_ends(field: str) -> None:
    low, high = RANGES[field]
    option = "--" + field.replace("_", "-")
    for value in (low - 1, high + 1):
        expected = f"{option}: {value} is not allowed; a whole number from {low} to {high}"
        assert refusal(**{field: value}) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 1},
        {"block_size": 3},
        {"block_size": 1024},
        {"num_blocks": 1},
        {"num_blocks": 2, "block_size": 1},
        {"max_model_len": 2},
        {"max_num_seqs": 1, "max_num_batched_tokens": 1},
        {"max_num_seqs": 64, "max_num_batched_tokens": 64},
    ],
)
def test_edges_that_can_work_are_taken(changes: dict[str, int]) -> None:
    config = options(**changes)
    assert {name: getattr(config, name) for name in changes} == changes


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0"), (1000, "1000"), (-1024, "-1KiB"), (3 * 2**19, "1536KiB"), (2**31, "2GiB")],
)
def test_memory_is_shown_as_it_can_be_given(num_bytes: int, shown: str) -> None:
    assert f"{ByteSize(num_bytes)} {ByteSize(num_bytes)!r}" == f"{shown} {shown}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"max_num_batched_tokens": 8},
            "--max-num-batched-tokens: 8 is not allowed; at least --max-num-seqs (64), "
            "so that every sequence can decode",
        ),
        (
            {"num_blocks": 9, "kv_cache_memory": 2**30},
            "--kv-cache-memory: 1GiB is not allowed; not beside --num-blocks (9), "
            "which sets the pool's size too",
        ),
        (
            {"num_blocks": 1, "block_size": 1},
            "--num-blocks: 1 is not allowed; at least 2 of --block-size 1: "
            "a token needs room for the one that follows it",
        ),
        (
            {"scheduling_policy": "lifo"},
            "--scheduling-policy: 'lifo' is not allowed; one of fcfs, priority",
        ),
        (
            {"attention_backend": "cuda"},
            "--attention-backend: 'cuda' is not allowed; one of auto, triton, cpu, reference",
        ),
    ],
)
def test_what_cannot_work_names_option_value_and_what_is_allowed(
    changes: dict[str, Any], message: str
) -> None:
    assert refusal(**changes) == message
