"""What is answered where there is nothing: an error object to programs, to browsers a page that leads home."""

from collections.abc import Mapping

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from api.errors import ApiError, error_response

METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
# First parts of paths that never belong to the page. Under openapi.json Gradio would list its own routes.
OWN_PARTS = (
    *("api", "detokenize", "health", "metrics", "openapi.json"),
    *("ping", "tokenize", "v1", "version", "ws"),
)

_NOTHING_HERE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Nothing here - Pageturn</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<body style="font:16px system-ui;margin:15vh auto;max-width:22rem;padding:0 1rem">
<h1>Nothing here</h1><p>Pageturn has no page at this address.</p><p><a href="/">Go to the chat</a></p></body></html>"""


class UnknownRoute:
    """What no other route under OWN_PARTS takes, whatever the method: 405 if others are taken there, else 404.

    An ASGI application: a function would be one for GET alone. `router` is to be included last.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        methods = ", ".join(_methods_here(scope))
        raise _refusal(scope["method"], scope["path"], {"Allow": methods} if methods else None)


async def answer_unknown(request: Request, error: Exception) -> Response:
    """In the page's name, for what it has refused with 404 or 405."""
    assert isinstance(error, HTTPException), "only these have a status"
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_NOTHING_HERE, error.status_code, error.headers)
    allow = error.headers if error.status_code == 405 else None
    return error_response(_refusal(request.method, request.url.path, allow))


def _refusal(method: str, path: str, allow: Mapping[str, str] | None) -> ApiError:
    """405 with the methods that are allowed, if there are any, else 404."""
    if allow:
        message = f"{method} {path}: this path has other methods"
        return ApiError(405, message, code="method_not_allowed", headers=allow)
    return ApiError(404, f"{method} {path}: there is no such route", code="unknown_route")


def _methods_here(scope: Scope) -> list[str]:
    routes = [r for r in scope["app"].routes if r.matches(scope)[0] is Match.PARTIAL]
    return [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]


class _Anything(Convertor[str]):
    """The rest of a path, line breaks included, which `path` leaves out."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _Anything())
_paths = [f"/{part}{rest}" for part in OWN_PARTS for rest in ("", "/{path:anything}")]
router = APIRouter(routes=[Route(path, UnknownRoute()) for path in _paths])
