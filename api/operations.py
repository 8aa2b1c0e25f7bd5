"""For operators: /health, /ping, /version, /metrics, /api/stats, /api/blocks, /api/requests."""

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.routing import Match

from api.context import context_of
from api.documents import stats_document
from api.errors import RETRY_AFTER_S, ApiError

_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
VERSION: str = tomllib.loads(_PROJECT.read_text())["project"]["version"]

router = APIRouter()
leftovers = APIRouter()
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@router.get("/health")
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


@router.get("/ping")
@router.post("/ping")
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


@router.get("/api/stats")
async def stats(request: Request) -> dict[str, Any]:
    return stats_document(context_of(request).engine)


@router.get("/api/blocks")
async def blocks(request: Request) -> dict[str, Any]:
    """The block map as of between two steps."""
    return {"blocks": [asdict(block) for block in await context_of(request).engine.block_map()]}


@router.get("/api/requests")
async def requests(request: Request) -> dict[str, Any]:
    """Live requests in order of arrival."""
    return {"requests": [asdict(item) for item in await context_of(request).engine.requests()]}


@leftovers.api_route("/v1/{path:path}", methods=[*METHODS])
@leftovers.api_route("/api/{path:path}", methods=[*METHODS])
async def unknown_route(request: Request) -> None:
    """What no other route of /v1 and /api takes: 405 for a wrong method, else 404. Include this router last."""
    known = any(route.matches(request.scope)[0] is Match.PARTIAL for route in request.app.routes)
    name = f"{request.method} {request.url.path}"
    if known:
        raise ApiError(405, f"{name}: this path has other methods", code="method_not_allowed")
    raise ApiError(404, f"{name}: there is no such route", code="unknown_route")
