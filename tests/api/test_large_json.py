"""The parser for large files says what the one for bodies says, a value at a time."""

import json
from codecs import BOM_UTF8
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api import large_json
from api.json_values import parse_json
from api.large_json import DEPTH, parse_large_json, take_apart
from engine.errors import RequestError

TEXTS = st.text() | st.sampled_from(["", "\\ud83d", "😀", "\u2028", '"', "\\"])
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS | TEXTS, lambda v: st.lists(v) | st.dictionaries(TEXTS, v), max_leaves=30
)


def outcome(parse: Any, body: bytes) -> tuple[Any, ...]:
    try:
        return (json.dumps(parse(body)),)
    except RequestError as error:
        return (error.message, error.param, error.code)


@given(VALUES, st.sampled_from([None, 0, 3]), st.booleans())
@settings(deadline=None)
def test_every_document_is_read_as_by_the_other(
    value: object, indent: int | None, ascii_only: bool
) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert parse_large_json(body) == parse_json(body) == value


@given(VALUES, st.data())
@settings(deadline=None)
def test_every_broken_document_is_refused_as_by_the_other(value: object, data: Any) -> None:
    text = json.dumps(value)
    place = data.draw(st.integers(0, len(text)))
    piece = data.draw(
        st.sampled_from(["", ",", "]", "}", '"', ":", " ", "1", "e999", "NaN", "\\ud83d"])
    )
    length = data.draw(st.integers(0, 2))
    body = (text[:place] + piece + text[place + length :]).encode()
    assert outcome(parse_large_json, body) == outcome(parse_json, body)


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"[", b"[1,]", b"[1 2]", b"{", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{1:2}", b'{"a" 1}', b"[1]x", b"[" * 100_000,
        b"\xff", b"\xef\xbb\xbf[]", b"[NaN]", b"[-Infinity]", b"[1e999]", b"[" + b"9" * 400 + b".0]", b"[01]", b"[1.]",
        b'["\\ud83d"]', b'{"\\ud83d": 1}', b'["\\ud83d\\ude00"]', b'["a\tb"]', b"[" + b"9" * 5000 + b"]", b'{"a": 1, "a": 2}',
    ],
)  # fmt: skip
def test_odd_documents(body: bytes) -> None:
    assert outcome(parse_large_json, body) == outcome(parse_json, body)


def test_a_document_is_taken_apart_from_its_leaves() -> None:
    leaf = {"x": 1}
    document: Any = [[{"a": {"b": leaf}}, 5], "text"]
    inner = document[0]
    take_apart(document)
    assert (document, inner, leaf) == ([], [], {})
    take_apart(None)


def test_no_value_that_is_parsed_at_once_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a conversation's tree as exports have it: a list of objects, each with an object of nodes."""
    parsed: list[int] = []
    small = large_json._Walk._small

    def noted(walk: Any, start: int) -> object:
        value = small(walk, start)
        parsed.append(walk._end - start)
        return value

    monkeypatch.setattr(large_json._Walk, "_small", noted)
    nodes = {f"m{i}": {"content": "x" * 50, "parts": [1, 2]} for i in range(1000)}
    document = [{"chat": {"history": {"messages": nodes}}}]
    assert parse_large_json(json.dumps(document).encode()) == document
    assert DEPTH == 5
    assert max(parsed) < 100


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'[["\\ud800"],' + b"[[[[[[[[1]]]]]]]]," * 2**16 + b"1]", "half of a surrogate pair"),
        (b"[" + b"1," * 2**20, "Expecting value"),
        (b"[" + b"1," * 2**20 + b"1]" + b"x", "more than one value"),
    ],
)
def test_a_large_body_that_is_refused_is_not_parsed_at_once(
    body: bytes, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def noted(piece: bytes) -> object:
        sizes.append(len(piece))
        return parse_json(piece)

    monkeypatch.setattr(large_json, "parse_json", noted)
    with pytest.raises(RequestError, match=fault):
        parse_large_json(body)
    assert max(sizes, default=0) < 100


def test_a_body_of_very_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "MOST_VALUES", 1000)
    monkeypatch.setattr(large_json, "PARSED_AT_ONCE", 0)
    assert parse_large_json(b"[" + b"1," * 999 + b"1]") == [1] * 1000
    with pytest.raises(RequestError, match="more than 1,000 values"):
        parse_large_json(b"[" + b"1," * 1000 + b"1]")


@pytest.mark.parametrize("gap", [",", " ,\n "])
def test_a_long_list_of_numbers_is_parsed_in_pieces(
    gap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_json, "NUMBERS_AT_ONCE", 50)
    monkeypatch.setattr(large_json, "PARSED_AT_ONCE", 0)
    pieces: list[int] = []
    parse = large_json._Walk._parse_list

    def noted(walk: Any, text: str) -> Any:
        pieces.append(len(text))
        return parse(walk, text)

    monkeypatch.setattr(large_json._Walk, "_parse_list", noted)
    numbers = [0, -7, 2.5, 1e-3, 40_000] * 40
    text = gap.join(map(json.dumps, numbers))
    assert parse_large_json(f'{{"a": [{text}], "b": 1}}'.encode()) == {"a": numbers, "b": 1}
    assert len(pieces) > 10
    assert max(pieces) < 70
    for broken in (f"[{text},]", f"[,{text}]", f"[{text},,{text}]", f"[{text} {text}]", f"[{text}"):
        with pytest.raises(RequestError):
            parse_large_json(broken.encode())


@pytest.mark.parametrize("parse", [parse_json, parse_large_json])
def test_a_byte_order_mark_is_no_part_of_the_document(parse: Any) -> None:
    assert parse(BOM_UTF8 + b'{"a": "\xc3\xa4"}') == {"a": "ä"}
    for body in (BOM_UTF8, BOM_UTF8 * 2 + b"[]", b"[" + BOM_UTF8 + b"]"):
        with pytest.raises(RequestError):
            parse(body)
