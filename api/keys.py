"""The check that every request passes when there are API keys.

A client shows a key as `Authorization: Bearer KEY`, as `?api_key=KEY`, or as the cookie that opening `/?api_key=KEY`
sets (this is how the page, its socket and its files get in). Whatever the cookie opens must come from a page of this
server. `/health` and `/ping` stay open. Every key opens everything; comparing takes the same time whichever is shown.
"""

import hashlib
import hmac
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import ApiError, error_response
from api.guards import refuse, same_origin, wrong_origin

OPEN_PATHS = frozenset({"/health", "/ping"})
COOKIE = "pageturn_key"

_ASK_FOR_KEY = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Pageturn</title>
<meta name="viewport" content="width=device-width"><body style="font:16px system-ui;margin:15vh auto;max-width:22rem">
<h1>Pageturn</h1><form><label>API key<br><input type="password" name="api_key" autofocus
style="font:inherit;width:100%;padding:.5rem;margin:.5rem 0"></label><button style="font:inherit;padding:.5rem 1rem">
Open</button></form></body></html>"""


class KeyCheck:
    """Lets only those in who show a key. A browser sends the cookie for other ports' pages too: they are refused."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self.app = app
        self._cookies = {key.encode(): _cookie_of(key) for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        query_key = self._query_key(scope)
        if query_key is not None and scope["type"] == "http" and scope["path"] == "/":
            await self._let_in(query_key)(scope, receive, send)
        elif query_key is not None or self._is_header_right(scope):
            await self.app(scope, receive, send)
        elif not self._is_cookie_right(scope):
            await refuse(scope, receive, send, _no_key(scope))
        elif not same_origin(scope):
            await refuse(scope, receive, send, wrong_origin())
        else:
            await self.app(scope, receive, send)

    def _is_header_right(self, scope: Scope) -> bool:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and _is_among(token.strip().encode(), self._cookies)

    def _is_cookie_right(self, scope: Scope) -> bool:
        cookie = _read_cookie(Headers(scope=scope).get("cookie", ""))
        return _is_among(cookie.encode(), (c.encode() for c in self._cookies.values()))

    def _query_key(self, scope: Scope) -> bytes | None:
        """The key that the query string shows, if it is one."""
        values = parse_qs(scope["query_string"].decode("latin-1")).get("api_key", [])
        given = (value.encode() for value in values)
        return next((key for key in given if _is_among(key, self._cookies)), None)

    def _let_in(self, key: bytes) -> Response:
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, self._cookies[key], httponly=True, samesite="strict")
        return response


def _cookie_of(key: str) -> str:
    return hashlib.blake2b(key.encode(), person=b"pageturn-cookie").hexdigest()


def _no_key(scope: Scope) -> Response:
    if scope["type"] == "http" and scope["path"] == "/":
        return HTMLResponse(_ASK_FOR_KEY, 401)
    return error_response(ApiError(401, "the API key is missing or wrong", code="invalid_api_key"))


def _read_cookie(header: str) -> str:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _is_among(given: bytes, expected: Iterable[bytes]) -> bool:
    """All of them are compared, so that time does not tell which came close."""
    return sum(hmac.compare_digest(given, one) for one in expected) > 0
