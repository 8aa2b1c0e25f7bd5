"""JSON as the server reads it: stricter than most parsers, and saying where a fault lies."""

import json
import math
import re
from codecs import BOM_UTF8
from collections.abc import Iterator

import pydantic_core

from engine.errors import RequestError

_SURROGATE = re.compile("[\ud800-\udfff]")
# A body with all digits alike, and what then is every spelling of a number over 1e308, and little else.
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_OVERFLOWS = (b"0e00", b"0e+00", b"0" * 300)


def parse_json(body: bytes) -> object:
    """JSON values. NaN, infinities (as 1e999) and lone surrogates are no JSON. Raises RequestError.

    A byte order mark in front, which editors on Windows write, is left out, as RFC 8259 allows.
    """
    body = body.removeprefix(BOM_UTF8)
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
        if may_overflow(body) and _has_infinity(value):
            raise ValueError("a number is too large")
        return value
    except ValueError as error:
        place = _half_pair(body)
        fault = f"{place or 'it'} holds half of a surrogate pair" if place is not None else error
        raise RequestError(
            f"the body is not JSON: {fault}", param=place or None, code="invalid_json"
        ) from None


def may_overflow(body: bytes) -> bool:
    """Whether a number may be too large for a float: most bodies need no second look."""
    alike = body.translate(_ALIKE)
    return any(each in alike for each in _OVERFLOWS)


def _half_pair(body: bytes) -> str | None:
    """The path of the first text with a lone surrogate, where that is all that is wrong; empty for the whole body."""
    try:
        texts = _texts(json.loads(body), "")
        return next((path for path, text in texts if _SURROGATE.search(text)), None)
    except (ValueError, RecursionError):
        return None


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Every text with its path; the name of a field has that of its object."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _texts(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield path, name
            yield from _texts(item, f"{path}.{name}" if path else name)


def _has_infinity(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_infinity, value.values()))
    if isinstance(value, list):
        return any(map(_has_infinity, value))
    return isinstance(value, float) and math.isinf(value)
