"""Reading JSON bodies: every fault is a 400 that names the field."""

import math
import re
from typing import TypeVar

import pydantic_core
from fastapi import Request
from pydantic import BaseModel, ValidationError

from api.errors import validation_refusal
from engine.errors import RequestError

Body = TypeVar("Body", bound=BaseModel)
# Every spelling of a number over 1e308, and little else: most bodies need no second look.
_MAY_OVERFLOW = re.compile(rb"[0-9][eE]\+?[0-9]{2}|[0-9]{300}")


async def read_json(request: Request) -> object:
    """The body as JSON values. Raises RequestError."""
    return parse_json(await request.body())


def parse_json(body: bytes) -> object:
    """JSON values. NaN, infinities (as 1e999) and lone surrogates are no JSON. Raises RequestError."""
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
        if _MAY_OVERFLOW.search(body) and _has_infinity(value):
            raise ValueError("a number is too large")
        return value
    except ValueError as error:
        raise RequestError(
            f"the body is not JSON: {error}", param=None, code="invalid_json"
        ) from None


async def read_body(request: Request, model: type[Body]) -> Body:
    """The body as `model`. Raises RequestError."""
    raw = await read_json(request)
    if not isinstance(raw, dict):
        raise RequestError("the body must be a JSON object", param=None, code="invalid_json")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise validation_refusal(error) from None


def _has_infinity(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_infinity, value.values()))
    if isinstance(value, list):
        return any(map(_has_infinity, value))
    return isinstance(value, float) and math.isinf(value)
