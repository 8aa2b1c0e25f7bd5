"""Reading JSON bodies: every fault is a 400 that names the field."""

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from api.errors import validation_refusal
from api.json_values import parse_json
from api.large_json import PARSED_AT_ONCE, parse_large_json
from engine.errors import RequestError

MAX_FIELDS = 1000
Body = TypeVar("Body", bound=BaseModel)


async def read_json(request: Request) -> object:
    """The body as JSON values; a large one is read while others go on. Raises RequestError."""
    body = await request.body()
    if len(body) <= PARSED_AT_ONCE:
        return parse_json(body)
    return await asyncio.to_thread(parse_large_json, body)


async def read_body(request: Request, model: type[Body]) -> Body:
    """The body as `model`. Raises RequestError."""
    raw = await read_json(request)
    if not isinstance(raw, dict):
        raise RequestError("the body must be a JSON object", param=None, code="invalid_json")
    if len(raw) > MAX_FIELDS:
        message = f"the body has {len(raw)} fields; {MAX_FIELDS} are the most"
        raise RequestError(message, param=None)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise validation_refusal(error) from None
