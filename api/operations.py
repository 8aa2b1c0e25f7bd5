"""For operators: /health, /ping, /version, /metrics."""

import tomllib
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.context import context_of
from api.errors import RETRY_AFTER_S

_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
VERSION: str = tomllib.loads(_PROJECT.read_text())["project"]["version"]

router = APIRouter()


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
