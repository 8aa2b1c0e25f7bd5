"""The wire form of sampling keys: every range, every refusal by its exact path."""

import math
from dataclasses import replace

import pytest

from engine.beam_params import BeamParams
from engine.errors import RequestError
from engine.grammar_spec import GrammarKind, GrammarSpec
from engine.sampling_params import (
    SAMPLING_FIELDS,
    UNSUPPORTED_FIELDS,
    SamplingParams,
    validate_for_model,
)

A_PLUS = GrammarSpec(GrammarKind.REGEX, "a+", "guided_regex")


def refused(mapping: object, path: str = "") -> RequestError:
    with pytest.raises(RequestError) as caught:
        SamplingParams.from_mapping(mapping, path=path)  # pyright: ignore[reportArgumentType]
    return caught.value


def test_empty_mapping_gives_the_defaults() -> None:
    assert SamplingParams.from_mapping({}) == SamplingParams()


def test_null_is_the_same_as_absent() -> None:
    assert SamplingParams.from_mapping(dict.fromkeys(SAMPLING_FIELDS)) == SamplingParams()


def test_every_key_arrives() -> None:
    params = SamplingParams.from_mapping(
        {
            "n": 3,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "presence_penalty": -1,
            "frequency_penalty": 2,
            "max_tokens": 7,
            "min_tokens": 2,
            "seed": 2**64 - 1,
            "stop": ["a", "bc"],
            "stop_token_ids": [5, 6],
            "ignore_eos": True,
            "logit_bias": {"17": -100, "0": 1.5},
            "logprobs": True,
            "top_logprobs": 4,
            "cache_salt": "mine",
            "priority": -7,
        }
    )
    assert params == SamplingParams(
        n=3,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        max_tokens=7,
        min_tokens=2,
        seed=2**64 - 1,
        stop=("a", "bc"),
        stop_token_ids=(5, 6),
        ignore_eos=True,
        logit_bias={17: -100.0, 0: 1.5},
        logprobs=4,
        cache_salt="mine",
        priority=-7,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 1e-9),
        ("temperature", 2),
        ("top_p", 0),
        ("top_p", 1),
        ("top_k", 0),
        ("top_k", -1),
        ("top_k", 10**9),
        ("min_p", 1),
        ("max_tokens", 0),
        ("max_tokens", 10**12),
        ("seed", -(2**63)),
        ("seed", 0),
    ],
)
def test_edges_that_are_allowed(name: str, value: float) -> None:
    assert getattr(SamplingParams.from_mapping({name: value}), name) == value


BAD_NUMBERS = [math.nan, math.inf, -math.inf, True, "1", [1], {}]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
            for value in BAD_NUMBERS
        ),
        *(
            (name, value)
            for name in ("n", "top_k", "max_tokens", "min_tokens", "seed", "max_completion_tokens")
            for value in [*BAD_NUMBERS, 1.5, 2.0]
        ),
        ("temperature", -0.1),
        ("temperature", 2.5),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("min_p", 1.01),
        ("min_p", -0.01),
        ("repetition_penalty", 0),
        ("repetition_penalty", 10.5),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("n", 0),
        ("top_k", -2),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("priority", -101),
        ("priority", 101),
        ("priority", 1.5),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("stop", ""),
        ("stop", 5),
        ("stop", {"a": 1}),
        ("stop", "\ud800"),
        ("stop", ["x"] * 17),
        ("stop", "x" * 4097),
        ("stop_token_ids", [1] * 1025),
        ("stop_token_ids", "12"),
        ("stop_token_ids", 12),
        ("ignore_eos", 1),
        ("ignore_eos", "true"),
        ("logit_bias", [1]),
        ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", "yes"),
        ("cache_salt", ""),
        ("cache_salt", "x" * 257),
        ("cache_salt", 5),
        ("cache_salt", "\udfff"),
    ],
)
def test_refusals_name_the_field_under_its_path(name: str, value: object) -> None:
    error = refused({name: value}, "sampling")
    assert (error.param, error.code) == (f"sampling.{name}", "invalid_value")
    assert refused({name: value}).param == name


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"priority": 101}, "priority: 101 is not allowed; a whole number, -100 to 100"),
        ({"priority": "high"}, "priority: 'high' is not allowed; a whole number, -100 to 100"),
        ({"n": 0}, "n: 0 is not allowed; a whole number, 1 or more"),
        ({"temperature": 2.5}, "temperature: 2.5 is not allowed; a number from 0 to 2"),
        ({"top_k": -2}, "top_k: -2 is not allowed; a whole number, -1 or more"),
        ({"max_tokens": 1.5}, "max_tokens: 1.5 is not allowed; a whole number, 0 or more"),
        ({"stop": ["a", ""]}, "stop[1]: '' is not allowed; a string that is not empty"),
        ({"cache_salt": ""}, "cache_salt: '' is not allowed; a string that is not empty"),
    ],
)
def test_refusals_tell_the_value_and_what_is_allowed(
    mapping: dict[str, object], message: str
) -> None:
    assert refused(mapping).message == message
    assert refused(mapping, "sampling").message == f"sampling.{message}"


@pytest.mark.parametrize(
    ("mapping", "param"),
    [
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", None]}, "stop[1]"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {"07": 1}}, "logit_bias.07"),
        ({"logit_bias": {"7": 101}}, "logit_bias.7"),
        ({"logit_bias": {"7": None}}, "logit_bias.7"),
        ({"logit_bias": {"7": math.nan}}, "logit_bias.7"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 2, "top_logprobs": 3}, "top_logprobs"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
    ],
)
def test_refusals_inside_a_field(mapping: dict[str, object], param: str) -> None:
    assert refused(mapping).param == param


@pytest.mark.parametrize(
    ("mapping", "logprobs"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"top_logprobs": 0}, None),
        ({"logprobs": 0}, 0),
        ({"logprobs": 5}, 5),
        ({"logprobs": 5, "top_logprobs": 5}, 5),
    ],
)
def test_both_forms_of_logprobs(mapping: dict[str, object], logprobs: int | None) -> None:
    assert SamplingParams.from_mapping(mapping).logprobs == logprobs


def test_max_completion_tokens_is_another_name() -> None:
    assert SamplingParams.from_mapping({"max_completion_tokens": 6}).max_tokens == 6
    both = {"max_completion_tokens": 6, "max_tokens": 6}
    assert SamplingParams.from_mapping(both).max_tokens == 6


def test_one_stop_string_may_stand_alone() -> None:
    assert SamplingParams.from_mapping({"stop": "END"}).stop == ("END",)
    assert len(SamplingParams.from_mapping({"stop": ["x"] * 16}).stop) == 16


def test_unknown_fields_and_wrong_documents() -> None:
    error = refused({"temprature": 1}, "sampling")
    assert (error.param, error.code) == ("sampling.temprature", "unknown_field")
    assert refused([], "sampling").param == "sampling"
    assert refused("x").param is None


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_FIELDS))
def test_unsupported_fields_are_refused_by_name_unless_neutral(name: str) -> None:
    assert name in SAMPLING_FIELDS
    error = refused({name: 7}, "sampling")
    assert (error.param, error.code) == (f"sampling.{name}", "invalid_value")
    assert "not supported" in error.message
    for neutral in UNSUPPORTED_FIELDS[name]:
        assert SamplingParams.from_mapping({name: neutral}) == SamplingParams()


def test_a_grammar_is_read_from_the_wire_and_has_no_field_of_its_own_name() -> None:
    params = SamplingParams.from_mapping({"guided_regex": "a+"}, path="sampling")
    assert params.grammar == GrammarSpec(GrammarKind.REGEX, "a+", "sampling.guided_regex")
    assert refused({"grammar": "a+"}).code == "unknown_field"
    assert refused({"guided_regex": "a", "guided_json": {}}, "sampling").param == (
        "sampling.guided_json"
    )


def test_true_is_not_the_number_one() -> None:
    assert refused({"best_of": True}).param == "best_of"
    assert refused({"early_stopping": 0}).param == "early_stopping"


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-4, True), (1e-3, False)])
def test_tiny_temperatures_are_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is greedy


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (SamplingParams(stop_token_ids=(3, 10)), "stop_token_ids[1]"),
        (SamplingParams(logit_bias={10: 1.0}), "logit_bias.10"),
        (SamplingParams(n=5), "n"),
        (SamplingParams(ignore_eos=True, grammar=A_PLUS), "ignore_eos"),
        (SamplingParams(beams=BeamParams(width=2), grammar=A_PLUS), "use_beam_search"),
    ],
)
def test_what_only_the_model_can_tell(params: SamplingParams, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        validate_for_model(params, vocab_size=10, max_num_seqs=4)
    assert caught.value.param == param
    mended = replace(params, ignore_eos=False, beams=None)
    validate_for_model(mended, vocab_size=11, max_num_seqs=5)


def test_temperatures_are_one_for_each_candidate() -> None:
    params = SamplingParams.from_mapping({"n": 2, "temperatures": [0, 1.5]})
    assert params.temperatures == (0.0, 1.5)
    validate_for_model(params, 10, 4)
    with pytest.raises(RequestError, match="temperatures has 2 entries; n is 3") as refused:
        validate_for_model(replace(params, n=3), 10, 4)
    assert refused.value.param == "temperatures"
    with pytest.raises(RequestError, match=r"temperatures\[1\]") as refused:
        SamplingParams.from_mapping({"temperatures": [1, 2.5]}, path="sampling")
    assert refused.value.param == "sampling.temperatures[1]"
    beams = SamplingParams.from_mapping(
        {"n": 2, "temperatures": [0, 0], "use_beam_search": True, "temperature": 0}
    )
    with pytest.raises(RequestError, match="use_beam_search"):
        validate_for_model(beams, 10, 4)
