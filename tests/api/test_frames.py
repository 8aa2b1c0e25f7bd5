"""docs/protocol.md and the code name the same frames with the same fields."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from api import frames
from api.frames import CLIENT_TYPES, EVENT_TYPES, OWN_TYPES, BadFrame, Send, frame_text, parse_frame
from chat import errors
from engine.sampling_params import SamplingParams

DOC = (Path(__file__).resolve().parents[2] / "docs/protocol.md").read_text()


def rows(heading: str) -> dict[str, str]:
    """First cell to second cell of the table below a heading."""
    section = DOC.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \|(.*?)\|", section, re.MULTILINE)
    return dict(found)


def fields(cell: str) -> set[str]:
    """The field names at the head of a table cell, optional ones too."""
    return set(re.findall(r"`(\w+)[^`]*`", cell.split(": ")[0] if ": [" not in cell else cell))


def test_client_frames_are_those_of_the_document() -> None:
    documented = rows("Client frames")
    assert documented.keys() == CLIENT_TYPES.keys()
    for kind, frame in CLIENT_TYPES.items():
        assert fields(documented[kind]) == frame.model_fields.keys() - {"type", "request_id"}, kind


def test_optional_fields_are_marked() -> None:
    for kind, cell in rows("Client frames").items():
        marked = set(re.findall(r"`(\w+)\?`", cell))
        model = CLIENT_TYPES[kind].model_fields
        optional = {name for name, field in model.items() if not field.is_required()}
        assert marked == optional - {"request_id"}, kind


def test_server_frames_are_those_of_the_document() -> None:
    documented = rows("Server frames").keys() | {"render"}
    assert documented == set(EVENT_TYPES.values()) | OWN_TYPES
    assert "`render {generation_id, seq, index, html, tail}`" in DOC


def test_fields_of_events_are_those_of_the_document() -> None:
    documented = rows("Server frames")
    for event, kind in EVENT_TYPES.items():
        names = {field.name for field in dataclasses.fields(event)}
        assert names <= fields(documented[kind]), kind


def test_topics_and_error_codes_are_those_of_the_document() -> None:
    assert rows("Topics").keys() == set(frames.Topic.__args__)
    codes = set(re.findall(r"`(\w+)`", DOC.split("Error codes: ")[1].split(".\n")[0]))
    raised = {error.code for error in errors.ChatError.__subclasses__()}
    assert raised | {"invalid_frame", "invalid_value", "unknown_field", "loading"} <= codes


def test_a_good_frame_is_read_and_its_sampling_left_to_the_engine() -> None:
    frame = parse_frame(
        '{"type": "send", "content": "hi", "sampling": {"top_k": 3}, "request_id": 5}'
    )
    assert frame == Send(type="send", content="hi", sampling={"top_k": 3}, request_id=5)
    assert SamplingParams.from_mapping({"top_k": 3}).top_k == 3


TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "send"}, "content: this field is required"),
    ({"type": "send", "content": None}, "content: null is not allowed; a string is required"),
    (
        {"type": "send", "content": "a", "n": 1.5},
        "n: 1.5 is not allowed; a whole number is required",
    ),
    (
        {"type": "send", "content": "a", "sampling": []},
        "sampling: [] is not allowed; an object is required",
    ),
    ({"type": "select", "message_id": "a", "zoo": 1}, "zoo: unknown field; leave it out"),
    (
        {"type": "continue", "message_id": "a", "at_token": -1},
        "at_token: -1 is not allowed; 0 or more is required",
    ),
    (
        {"type": "attach", "generation_id": "a", "from_seq": True},
        "from_seq: true is not allowed; a whole number is required",
    ),
    (
        {"type": "unsubscribe", "topic": "weather"},
        "topic: 'weather' is not allowed; one of 'conversations', 'conversation', 'stats', 'requests' or 'blocks' is required",
    ),
    ({"type": "ping", "request_id": []}, "request_id: a string or a number is required"),
]


@pytest.mark.parametrize(("frame", "text"), TEXTS)
def test_a_refusal_says_what_to_do(frame: dict[str, Any], text: str) -> None:
    refused = parse_frame(json.dumps(frame))
    assert isinstance(refused, BadFrame)
    assert refused.error.message == text


def test_null_is_the_same_as_absent_in_optional_fields() -> None:
    frame = parse_frame('{"type": "send", "content": "hi", "n": null, "conversation_id": null}')
    assert not isinstance(frame, BadFrame)


def test_frames_keep_unicode_and_leave_out_an_absent_request_id() -> None:
    assert frame_text("pong", {"a": "é"}) == '{"type":"pong","a":"é"}'
    assert frame_text("pong", {}, 0) == '{"type":"pong","request_id":0}'


def test_half_a_surrogate_pair_does_not_cost_the_request_id() -> None:
    for text, request_id in (
        (r'{"type": "send", "request_id": "z", "content": "\ud800"}', "z"),
        (r'{"type": "ping", "request_id": 7, "x": "\ud800"}', 7),
        (r'{"type": "ping", "request_id": "\ud800"}', None),
        (r'{"type": "ping", "request_id": ["\ud800"]}', None),
        (r'["\ud800"]', None),
        ('{"request_id": "z", ', None),
        ("[" * 100_000, None),
    ):
        frame = parse_frame(text)
        assert isinstance(frame, BadFrame)
        assert frame.error.code == "invalid_frame"
        assert frame.request_id == request_id
