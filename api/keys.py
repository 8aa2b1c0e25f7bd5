"""The check that every request passes when there are API keys.

A client shows a key as `Authorization: Bearer KEY`, as `?api_key=KEY`, or as the cookie that opening `/?api_key=KEY`
sets (this is how the page, its socket and its files get in). Whatever the cookie opens must come from a page of this
server. A key, right or wrong, does not stay in the page's address. `/health` and `/ping` stay open. Every key opens everything; comparing takes the same time whichever is shown.
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
from api.key_page import key_page

OPEN_PATHS = frozenset({"/health", "/ping"})
COOKIE = "pageturn_key"
WRONG_KEY = "wrong_key"


class KeyCheck:
    """Lets only those in who show a key. A browser sends the cookie for other ports' pages too: they are refused."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self.app = app
        self._cookies = {key.encode(): _cookie_of(key) for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        shown = _query(scope).get("api_key", [])
        key = self._right_one(shown)
        if shown and _is_page(scope):
            await self._lead_on(scope, key)(scope, receive, send)
        elif key is not None or self._is_header_right(scope):
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

    def _right_one(self, shown: list[str]) -> bytes | None:
        """The key among what a query string shows, if there is one."""
        given = (value.encode() for value in shown)
        return next((key for key in given if _is_among(key, self._cookies)), None)

    def _lead_on(self, scope: Scope, key: bytes | None) -> Response:
        """To the page's address without the key that was shown in it; None: a wrong one."""
        if key is None:
            return RedirectResponse("/" if self._is_cookie_right(scope) else f"/?{WRONG_KEY}", 303)
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, self._cookies[key], httponly=True, samesite="strict")
        return response


def _is_page(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["path"] == "/"


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _cookie_of(key: str) -> str:
    return hashlib.blake2b(key.encode(), person=b"pageturn-cookie").hexdigest()


def _no_key(scope: Scope) -> Response:
    if _is_page(scope):
        return HTMLResponse(key_page(is_wrong=WRONG_KEY in _query(scope)), 401)
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
