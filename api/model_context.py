"""What the routes that need the model share: a context that takes requests, and a body that asks for this model."""

from typing import Annotated, TypeVar

from fastapi import Depends, Request

from api.bodies import read_body
from api.context import ApiContext, context_of
from api.errors import ApiError
from api.openai_schema import Body

AnyBody = TypeVar("AnyBody", bound=Body)


def open_context(request: Request) -> ApiContext:
    """The context of a server that has a model and takes requests; else 503."""
    context = context_of(request)
    if context.draining:
        raise ApiError(503, "the server is shutting down", code="shutting_down")
    _ = context.engine.info
    return context


Context = Annotated[ApiContext, Depends(open_context)]


async def read_for_model(context: ApiContext, request: Request, kind: type[AnyBody]) -> AnyBody:
    """The request's body. Raises RequestError, and ApiError 404 for another model's name."""
    body = await read_body(request, kind)
    if body.model is not None:
        check_model(context, body.model)
    return body


def check_model(context: ApiContext, name: str) -> None:
    """Raises ApiError 404 unless this model is served."""
    served = context.engine.info.model_name
    if name != served:
        message = f"model: there is no {name!r} here, only {served!r}"
        raise ApiError(404, message, param="model", code="model_not_found")
