"""Calls in what a model writes: every form, however the text is cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.tool_calls import CallReader, ToolCall

NAMES = frozenset({"f", "g"})


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def read(*texts: str, is_parallel: bool = True) -> list[Any]:
    """Texts joined between calls."""
    reader = CallReader(NAMES, is_parallel)
    pieces = [piece for text in texts for piece in reader.feed(text)] + reader.close()
    joined: list[Any] = []
    for piece in pieces:
        if joined and isinstance(piece, str) and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


F = '{"name": "f", "arguments": {"x": "é } ]\\""}}'
G = '{"name":"g","parameters":{}}'
CALL_F, CALL_G = call("f", x='é } ]"'), call("g")
CASES: list[tuple[str, list[Any]]] = [
    ("", []),
    ("  \n", ["  \n"]),
    ("plain words", ["plain words"]),
    (" a < b <tool", [" a < b <tool"]),
    (f"<tool_call>{F}</tool_call>", [CALL_F]),
    (f"\n<tool_call>\n{F}\n</tool_call>\n<tool_call>{G}</tool_call>\n", ["\n", CALL_F, CALL_G]),
    (f"Let me see. <tool_call>{F}</tool_call>", ["Let me see. ", CALL_F]),
    (f"<tool_call>{F}</tool_call> Done.", [CALL_F, "Done."]),
    (f"<tool_call>{F}", [CALL_F]),
    ("<tool_call>{", ["<tool_call>{"]),
    ("<tool_call>no</tool_call> then", ["<tool_call>no</tool_call> then"]),
    (f"<tool_call>no</tool_call><tool_call>{F}</tool_call>", ["<tool_call>no</tool_call>", CALL_F]),
    (F, [CALL_F]),
    (f" {F} ", [CALL_F]),
    (f"[{F}, {G}]", [CALL_F, CALL_G]),
    (f"{F}\n{G}", [CALL_F, CALL_G]),
    ("[]", ["[]"]),
    ('{"name": "unknown", "arguments": {}}', ['{"name": "unknown", "arguments": {}}']),
    ('{"name": ["f"]}', ['{"name": ["f"]}']),
    ('{"name": "f", "arguments": "x"}', ['{"name": "f", "arguments": "x"}']),
    ('{"a": 1} is JSON', ['{"a": 1} is JSON']),
    ('[1, {"name": "f"}]', ['[1, {"name": "f"}]']),
    ('{"name": "f", "argum', ['{"name": "f", "argum']),
    (
        '{"name": "f", "arguments": {"x": "\\ud83d"}}',
        ['{"name": "f", "arguments": {"x": "\\ud83d"}}'],
    ),
    ('{"name": "f", "arguments": {"x": "\\ud83d\\ude00"}}', [call("f", x="\U0001f600")]),
    ('{"name": "f", "arguments": {"x": NaN}}', ['{"name": "f", "arguments": {"x": NaN}}']),
    ("}{", ["}{"]),
    ("[" * 2000, ["[" * 2000]),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_calls_and_text(text: str, expected: list[Any]) -> None:
    assert read(text) == expected
    assert read(*text) == expected


@given(st.sampled_from(CASES), st.lists(st.integers(0, 80), max_size=6))
@settings(max_examples=200, deadline=None)
def test_the_cuts_do_not_matter(case: tuple[str, list[Any]], cuts: list[int]) -> None:
    text, expected = case
    marks = [0, *sorted(cuts), len(text)]
    assert read(*(text[a:b] for a, b in pairwise(marks))) == expected


def test_text_that_can_be_no_call_is_told_at_once() -> None:
    reader = CallReader(NAMES, True)
    assert reader.feed(" Hel") == [" Hel"]
    assert reader.feed("lo <") == ["lo "]
    assert reader.feed("b") == ["<b"]
    assert reader.feed(f"<tool_call>{F}</tool_call") == []
    assert reader.feed(">") == [CALL_F]
    assert reader.close() == []


def test_only_the_first_counts_where_one_was_asked_for() -> None:
    assert read(f"[{F}, {G}]", is_parallel=False) == [CALL_F]
    assert read(f"<tool_call>{F}</tool_call><tool_call>{G}</tool_call>", is_parallel=False) == [
        CALL_F
    ]
