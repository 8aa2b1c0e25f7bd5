"""`--rope-scaling` as a value: what is understood, and what is refused by the field's name."""

import json
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.rope_scaling import RopeScaling, parse_rope_scaling

LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


@pytest.mark.parametrize(
    "given",
    [
        {"rope_type": "linear", "factor": 1},
        {"rope_type": "dynamic", "factor": 2.5, "original_max_position_embeddings": 4096},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 24, "beta_slow": 2},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25},
        LLAMA3 | {"original_max_position_embeddings": 8192},
    ],
    ids=lambda given: given["rope_type"],
)
def test_what_is_given_is_what_is_set(given: dict[str, Any]) -> None:
    scaling = parse_rope_scaling(json.dumps(given))
    assert isinstance(scaling, RopeScaling)
    assert scaling.parameters == given


def test_the_older_spelling_of_the_type() -> None:
    scaling = parse_rope_scaling('{"type": "linear", "factor": 2}')
    assert scaling == RopeScaling(rope_type="linear", factor=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "--rope-scaling rope_type: None is not allowed; one of linear, dynamic, yarn, llama3"),
        ({"rope_type": "longrope", "factor": 2}, "--rope-scaling rope_type: 'longrope' is not"),
        ({"rope_type": ["yarn"], "factor": 2}, "--rope-scaling rope_type: ['yarn'] is not"),
        (
            {"rope_type": "yarn"},
            "--rope-scaling factor: None is not allowed; a number from 1 to 1024",
        ),
        ({"rope_type": "linear", "factor": 0.5}, "--rope-scaling factor: 0.5 is not allowed"),
        ({"rope_type": "linear", "factor": float("nan")}, "--rope-scaling factor: nan is not"),
        ({"rope_type": "linear", "factor": 10**400}, "--rope-scaling factor: 1000"),
        ({"rope_type": "linear", "factor": "2"}, "--rope-scaling factor: '2' is not allowed"),
        ({"rope_type": "linear", "factor": True}, "--rope-scaling factor: True is not allowed"),
        (
            {"rope_type": "linear", "factor": 2, "original_max_position_embeddings": 8192.0},
            "--rope-scaling original_max_position_embeddings: 8192.0 is not allowed; a whole number",
        ),
        (
            {"rope_type": "linear", "factor": 2, "beta_fast": 32},
            "--rope-scaling beta_fast: 32 is not allowed; rope_type linear takes rope_type, factor, "
            "original_max_position_embeddings",
        ),
        (
            {"rope_type": "yarn", "factor": 2, "scale": 3},
            "--rope-scaling scale: 3 is not allowed; the fields are rope_type, factor, ",
        ),
        (
            {"rope_type": "yarn", "factor": 2, "beta_fast": 0.5},
            "--rope-scaling beta_slow: 1.0 is not allowed; less than beta_fast, which is 0.5",
        ),
        ({"rope_type": "yarn", "factor": 2, "beta_slow": 0}, "--rope-scaling beta_slow: 0 is not"),
        (
            {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1},
            "--rope-scaling high_freq_factor: None is not allowed; rope_type llama3 needs a number",
        ),
        (LLAMA3 | {"low_freq_factor": 4}, "--rope-scaling low_freq_factor: 4 is not allowed; less"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rope_scaling(json.dumps(given))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["yarn", "[1]", '"yarn"', "", '{"factor": 2'])
def test_only_a_json_object_will_do(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rope_scaling(text)
    assert str(caught.value) == (
        f'--rope-scaling: {text!r} is not allowed; a JSON object such as {{"rope_type": "yarn", "factor": 4}}'
    )
