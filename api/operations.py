"""For operators: /health, /ping, /version, /metrics."""

import tomllib
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from api.context import context_of
from api.errors import RETRY_AFTER_S, ApiError

_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
VERSION: str = tomllib.loads(_PROJECT.read_text())["project"]["version"]

router = APIRouter()
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
# First parts of paths that never belong to the page. Under openapi.json Gradio would list its own routes.
OWN_PARTS = (
    *("api", "detokenize", "health", "metrics", "openapi.json"),
    *("ping", "tokenize", "v1", "version", "ws"),
)


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(request: Request) -> JSONResponse:
    """200 when the engine takes requests, else 503 with how far it is."""
    context = context_of(request)
    status = context.engine.status
    document = {"status": status.state, "stage": status.stage, "fraction": status.fraction}
    if status.error:
        document["error"] = status.error
    if context.draining:
        document["status"] = "draining"
    ready = status.state == "ready" and not context.draining
    headers = {} if ready else {"Retry-After": str(RETRY_AFTER_S)}
    return JSONResponse(document, 200 if ready else 503, headers)


@router.api_route("/ping", methods=["GET", "HEAD", "POST"])
async def ping() -> Response:
    """The process answers, ready or not."""
    return Response("pong", media_type="text/plain")


@router.get("/version")
async def show_version() -> dict[str, str]:
    return {"version": VERSION}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text; histograms only until the model is ready."""
    return Response(context_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)


class UnknownRoute:
    """What no other route under OWN_PARTS takes, whatever the method: 405 if others are taken there, else 404.

    An ASGI application: a function would be one for GET alone. `leftovers` is to be included last.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = f"{scope['method']} {scope['path']}"
        if methods := _methods_here(scope):
            message = f"{name}: this path has other methods"
            allow = {"Allow": ", ".join(methods)}
            raise ApiError(405, message, code="method_not_allowed", headers=allow)
        raise ApiError(404, f"{name}: there is no such route", code="unknown_route")


def _methods_here(scope: Scope) -> list[str]:
    routes = [r for r in scope["app"].routes if r.matches(scope)[0] is Match.PARTIAL]
    return [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]


_paths = [f"/{part}{rest}" for part in OWN_PARTS for rest in ("", "/{path:path}")]
leftovers = APIRouter(routes=[Route(path, UnknownRoute()) for path in _paths])
