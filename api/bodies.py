"""Reading JSON bodies: every fault is a 400 that names the field."""

from typing import TypeVar

import pydantic_core
from fastapi import Request
from pydantic import BaseModel, ValidationError

from api.errors import validation_refusal
from engine.errors import RequestError

Body = TypeVar("Body", bound=BaseModel)


async def read_json(request: Request) -> object:
    """The body as JSON values. NaN, infinities and lone surrogates are no JSON. Raises RequestError."""
    try:
        return pydantic_core.from_json(await request.body(), allow_inf_nan=False)
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
