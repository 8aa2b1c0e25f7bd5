"""The wire form of grammars: what each field means, and how it is refused."""

from typing import Any

import pytest

from engine.errors import RequestError
from engine.grammar_spec import (
    MAX_CHOICES,
    MAX_GRAMMAR_LENGTH,
    GrammarKind,
    GrammarSpec,
    json_grammar,
    read_grammar,
)

ANY_OBJECT = GrammarSpec(GrammarKind.JSON, '{"type": "object"}', "")


def refused(given: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_grammar(given, "sampling.")
    return caught.value


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({"guided_json": {"type": "object"}}, ANY_OBJECT),
        ({"guided_json": '{"type": "object"}'}, ANY_OBJECT),
        ({"guided_regex": "a+"}, GrammarSpec(GrammarKind.REGEX, "a+", "")),
        ({"guided_choice": ["a", "ü"]}, GrammarSpec(GrammarKind.CHOICE, '["a", "\\u00fc"]', "")),
        ({"guided_grammar": "start: A"}, GrammarSpec(GrammarKind.LARK, "start: A", "")),
        ({"structured_outputs": {"json": {"type": "object"}}}, ANY_OBJECT),
        ({"structured_outputs": {"json_object": True, "regex": None}}, ANY_OBJECT),
        ({"structured_outputs": {"regex": "a+"}}, GrammarSpec(GrammarKind.REGEX, "a+", "")),
        ({"structured_outputs": {"choice": ["a"]}}, GrammarSpec(GrammarKind.CHOICE, '["a"]', "")),
        (
            {"structured_outputs": {"grammar": "start: A"}},
            GrammarSpec(GrammarKind.LARK, "start: A", ""),
        ),
        ({"temperature": 1.0}, None),
    ],
)
def test_the_fields_and_what_they_ask_for(given: dict[str, Any], spec: GrammarSpec | None) -> None:
    assert read_grammar(given, "") == spec


def test_a_spec_knows_its_field_and_is_equal_under_another_name() -> None:
    spec = read_grammar({"structured_outputs": {"regex": "a"}}, "sampling.")
    assert spec is not None
    assert spec.param == "sampling.structured_outputs.regex"
    assert spec == read_grammar({"guided_regex": "a"}, "")
    assert hash(spec) == hash(read_grammar({"guided_regex": "a"}, ""))


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"guided_json": 7}, "guided_json"),
        ({"guided_json": True}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": "[" * 200_000}, "guided_json"),
        ({"guided_json": {"minimum": float("nan")}}, "guided_json"),
        ({"guided_json": {"title": "x" * MAX_GRAMMAR_LENGTH}}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": ["a"]}, "guided_regex"),
        ({"guided_regex": "\ud800"}, "guided_regex"),
        ({"guided_regex": "a" * (MAX_GRAMMAR_LENGTH + 1)}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "ab"}, "guided_choice"),
        ({"guided_choice": ["a"] * (MAX_CHOICES + 1)}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]"),
        ({"guided_grammar": 1}, "guided_grammar"),
        ({"structured_outputs": "a"}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": None}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        (
            {"structured_outputs": {"whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
    ],
)
def test_what_cannot_be_is_refused_by_path(given: dict[str, Any], param: str) -> None:
    error = refused(given)
    assert (error.param, error.code) == (f"sampling.{param}", "invalid_value")
    assert len(error.message) < 400


def test_a_schema_for_others_to_use() -> None:
    spec = json_grammar({"type": "object"}, "tools[0].function.parameters")
    assert (spec, spec.param) == (ANY_OBJECT, "tools[0].function.parameters")
