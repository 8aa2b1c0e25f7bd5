"""What every request passes before its route: size limit, key, origin; and the headers every answer carries.

With an API key set, a client shows it as `Authorization: Bearer KEY`, as `?api_key=KEY`, or as the cookie that opening
`/?api_key=KEY` sets (this is how the page, its socket and its files get in). `/health` and `/ping` stay open.
A browser's socket, every write to `/api`, and whatever the cookie opens, must come from a page of this server: `Origin`,
where there is one, equal to `Host`.
"""

import hashlib
import hmac
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ApiError, error_response

MIB = 2**20
BODY_LIMIT = 8 * MIB
IMPORT_LIMIT = 64 * MIB
IMPORT_PATH = "/api/conversations/import"
OPEN_PATHS = frozenset({"/health", "/ping"})
COOKIE = "pageturn_key"

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
        "connect-src 'self'; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}

_ASK_FOR_KEY = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Pageturn</title>
<meta name="viewport" content="width=device-width"><body style="font:16px system-ui;margin:15vh auto;max-width:22rem">
<h1>Pageturn</h1><form><label>API key<br><input type="password" name="api_key" autofocus
style="font:inherit;width:100%;padding:.5rem;margin:.5rem 0"></label><button style="font:inherit;padding:.5rem 1rem">
Open</button></form></body></html>"""


class BodyLimit:
    """Answers 413 to a body over its path's limit: by its declared length, else while it is being read.

    A client that leaves before its body is read has ended its request: nobody is answered, and nothing has failed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = IMPORT_LIMIT if scope["path"] == IMPORT_PATH else BODY_LIMIT
        refusal = HTTPException(413, f"the body is larger than {limit // MIB} MiB")
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > limit:
            await error_response(refusal)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise refusal
            return message

        with suppress(ClientDisconnect):
            await self.app(scope, counted, send)


class KeyCheck:
    """Lets only those in who show the key. A browser sends the cookie for other ports' pages too: they are refused."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app = app
        self.key = key.encode()
        self.cookie = hashlib.blake2b(self.key, person=b"pageturn-cookie").hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
        elif self._query_key_is_right(scope) and scope["type"] == "http" and scope["path"] == "/":
            await self._let_in()(scope, receive, send)
        elif self._header_key_is_right(scope) or self._query_key_is_right(scope):
            await self.app(scope, receive, send)
        elif not self._cookie_is_right(scope):
            await _refuse(scope, receive, send, _no_key(scope))
        elif not _same_origin(scope):
            await _refuse(scope, receive, send, _wrong_origin())
        else:
            await self.app(scope, receive, send)

    def _header_key_is_right(self, scope: Scope) -> bool:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and _same(token.strip().encode(), self.key)

    def _cookie_is_right(self, scope: Scope) -> bool:
        cookie = _read_cookie(Headers(scope=scope).get("cookie", ""))
        return _same(cookie.encode(), self.cookie.encode())

    def _query_key_is_right(self, scope: Scope) -> bool:
        values = parse_qs(scope["query_string"].decode("latin-1")).get("api_key", [])
        return any(_same(value.encode(), self.key) for value in values)

    def _let_in(self) -> Response:
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, self.cookie, httponly=True, samesite="strict")
        return response


class OriginCheck:
    """Refuses sockets, and writes to stored chats, that another site's page asks a browser for."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not _is_guarded(scope) or _same_origin(scope):
            await self.app(scope, receive, send)
        else:
            await _refuse(scope, receive, send, _wrong_origin())


class SecurityHeaders:
    """Adds SECURITY_HEADERS to every HTTP answer that has not set its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)


def _no_key(scope: Scope) -> Response:
    if scope["type"] == "http" and scope["path"] == "/":
        return HTMLResponse(_ASK_FOR_KEY, 401)
    return error_response(ApiError(401, "the API key is missing or wrong", code="invalid_api_key"))


def _wrong_origin() -> Response:
    refusal = ApiError(403, "requests from another origin are refused", code="origin")
    return error_response(refusal)


async def _refuse(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    if scope["type"] == "websocket":
        await receive()
    await response(scope, receive, send)


def _is_guarded(scope: Scope) -> bool:
    if scope["type"] == "websocket":
        return True
    return scope["path"].startswith("/api/") and scope["method"] not in {"GET", "HEAD", "OPTIONS"}


def _same_origin(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def _read_cookie(header: str) -> str:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _same(given: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(given, expected)
