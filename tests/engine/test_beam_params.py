"""The fields of beam search in wire form."""

from typing import Any

import pytest

from engine.beam_params import NEUTRAL_BESIDE_BEAMS, BeamParams
from engine.errors import RequestError
from engine.sampling_params import SAMPLING_FIELDS, SamplingParams, validate_for_model

BEAMS = {"use_beam_search": True}


def refused(mapping: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        SamplingParams.from_mapping(mapping, path="sampling")
    return caught.value


def test_defaults() -> None:
    params = SamplingParams.from_mapping(BEAMS | {"n": 3})
    assert params.beams == BeamParams(width=3, length_penalty=1.0, early_stopping=False)
    assert (params.n, params.num_sequences, params.is_greedy) == (3, 3, True)
    assert SamplingParams(n=2).num_sequences == 2


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_every_field_is_read(early_stopping: Any) -> None:
    params = SamplingParams.from_mapping(
        BEAMS | {"best_of": 4, "length_penalty": -0.5, "early_stopping": early_stopping, "n": 2}
    )
    assert params.beams == BeamParams(width=4, length_penalty=-0.5, early_stopping=early_stopping)
    assert (params.n, params.num_sequences) == (2, 4)


@pytest.mark.parametrize(
    ("mapping", "field", "allowed"),
    [
        ({"use_beam_search": 1}, "use_beam_search", "true or false"),
        ({**BEAMS, "best_of": 2, "n": 3}, "best_of", "at least n (3)"),
        ({**BEAMS, "best_of": 0}, "best_of", "1 or more"),
        ({**BEAMS, "best_of": True}, "best_of", "a whole number"),
        ({**BEAMS, "length_penalty": 11}, "length_penalty", "-10 to 10"),
        ({**BEAMS, "length_penalty": float("nan")}, "length_penalty", "-10 to 10"),
        ({**BEAMS, "early_stopping": "always"}, "early_stopping", 'true, false or "never"'),
        ({**BEAMS, "early_stopping": 1}, "early_stopping", 'true, false or "never"'),
        ({**BEAMS, "stop_token_ids": [*range(17)]}, "stop_token_ids", "at most 16"),
        ({"best_of": 2}, "best_of", "use_beam_search"),
        ({"best_of": 3, "n": 2}, "best_of", "use_beam_search"),
        ({"best_of": True}, "best_of", "use_beam_search"),
        ({"length_penalty": 2}, "length_penalty", "use_beam_search"),
        ({"early_stopping": True}, "early_stopping", "use_beam_search"),
        ({"early_stopping": 0}, "early_stopping", "use_beam_search"),
    ],
)
def test_refusals_name_the_field_and_what_is_allowed(
    mapping: dict[str, Any], field: str, allowed: str
) -> None:
    error = refused(mapping)
    assert error.param == f"sampling.{field}"
    assert allowed in error.message


OTHERS: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "min_tokens": 1,
    "seed": 0,
    "stop": ["x"],
    "logit_bias": {"3": 1},
}


@pytest.mark.parametrize("name", sorted(NEUTRAL_BESIDE_BEAMS))
def test_fields_without_meaning_beside_beams_are_refused_unless_neutral(name: str) -> None:
    assert name in SAMPLING_FIELDS
    assert refused(BEAMS | {name: OTHERS[name]}).param == f"sampling.{name}"
    for neutral in NEUTRAL_BESIDE_BEAMS[name]:
        params = SamplingParams.from_mapping(BEAMS | {name: neutral})
        assert params.beams == BeamParams(width=1)


@pytest.mark.parametrize(
    "mapping",
    [
        {"use_beam_search": False},
        {"best_of": 1, "length_penalty": 1, "early_stopping": False},
        {"best_of": None, "length_penalty": None},
    ],
)
def test_without_a_search_neutral_values_pass(mapping: dict[str, Any]) -> None:
    assert SamplingParams.from_mapping(mapping) == SamplingParams()
    assert SamplingParams.from_mapping({"n": 3, "best_of": 3}) == SamplingParams(n=3)


def test_the_field_of_the_engine_is_none_of_the_wire() -> None:
    assert refused({"beams": None}).code == "unknown_field"


@pytest.mark.parametrize(("vocab_size", "max_num_seqs"), [(100, 4), (4, 100)])
def test_widths_beyond_slots_and_vocabulary_are_refused(vocab_size: int, max_num_seqs: int) -> None:
    with pytest.raises(RequestError, match="best_of is 5; at most 4 beams") as caught:
        validate_for_model(SamplingParams(beams=BeamParams(width=5)), vocab_size, max_num_seqs)
    assert caught.value.param == "best_of"
    validate_for_model(SamplingParams(beams=BeamParams(width=4)), vocab_size, max_num_seqs)
    validate_for_model(SamplingParams(n=5), 4, 5)
