"""Reading JSON bodies: every fault is a 400 that names the field."""

import json
import math
import re
from collections.abc import Iterator
from typing import TypeVar

import pydantic_core
from fastapi import Request
from pydantic import BaseModel, ValidationError

from api.errors import validation_refusal
from engine.errors import RequestError

Body = TypeVar("Body", bound=BaseModel)
_SURROGATE = re.compile("[\ud800-\udfff]")
# A body with all digits alike, and what then is every spelling of a number over 1e308, and little else.
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_OVERFLOWS = (b"0e00", b"0e+00", b"0" * 300)


async def read_json(request: Request) -> object:
    """The body as JSON values. Raises RequestError."""
    return parse_json(await request.body())


def parse_json(body: bytes) -> object:
    """JSON values. NaN, infinities (as 1e999) and lone surrogates are no JSON. Raises RequestError."""
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


async def read_body(request: Request, model: type[Body]) -> Body:
    """The body as `model`. Raises RequestError."""
    raw = await read_json(request)
    if not isinstance(raw, dict):
        raise RequestError("the body must be a JSON object", param=None, code="invalid_json")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise validation_refusal(error) from None


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
