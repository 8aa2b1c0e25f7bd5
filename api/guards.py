"""What every request passes before its route: size limit and origin; what it gets when a shutdown cuts it; and the headers
every answer carries.

A browser's socket and every write to `/api` must come from a page of this server: `Origin`, where there is one, equal
to `Host`.
"""

import asyncio
import time
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ApiError, error_response
from chat.tasks import CLOSED

MIB = 2**20
BODY_LIMIT = 8 * MIB
IMPORT_LIMIT = 64 * MIB
IMPORT_PATH = "/api/conversations/import"
DISCARDED = 4 * IMPORT_LIMIT
DISCARD_PAUSE_S = 2.0
DISCARD_S = 30.0

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


class BodyLimit:
    """Answers 413 to a body over its path's limit: by its declared length, else while it is being read.

    Clients that listen only once they have sent everything get their answer too: some more of the body is read, for some
    time, and let go. Then the connection is closed, so that nobody holds it by going on.
    A client that leaves before its body is read has ended its request: nobody is answered, and nothing has failed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = IMPORT_LIMIT if scope["path"] == IMPORT_PATH else BODY_LIMIT
        message = f"the body is larger than {limit // MIB} MiB"
        refusal = HTTPException(413, message, {"Connection": "close"})
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isascii() and declared.isdigit() and int(declared) > limit:
            if not _waits_for_word(scope):
                await _discard(receive)
            await error_response(refusal)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                await _discard(receive)
                raise refusal
            return message

        with suppress(ClientDisconnect):
            await self.app(scope, counted, send)


def _waits_for_word(scope: Scope) -> bool:
    """Whether the client sends its body only when it is told to go on."""
    return Headers(scope=scope).get("expect", "").lower() == "100-continue"


async def _discard(receive: Receive) -> None:
    """Read the rest of a body for as long as it comes, DISCARDED bytes and about DISCARD_S seconds at most."""
    left, ends = DISCARDED, time.monotonic() + DISCARD_S
    with suppress(TimeoutError):
        while left > 0 and time.monotonic() < ends:
            message = await asyncio.wait_for(receive(), DISCARD_PAUSE_S)
            left -= len(message.get("body", b""))
            if not message.get("more_body"):
                return


class CutShort:
    """A request that the server's end cuts is refused where its answer has not begun; an answer ends where it is."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except asyncio.CancelledError:
            if not has_begun:
                refusal = ApiError(503, CLOSED, code="shutting_down")
                await error_response(refusal)(scope, receive, send)


class OriginCheck:
    """Refuses sockets, and writes to stored chats, that another site's page asks a browser for."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not _is_guarded(scope) or same_origin(scope):
            await self.app(scope, receive, send)
        else:
            await refuse(scope, receive, send, wrong_origin())


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


def wrong_origin() -> Response:
    """The answer to another site's page."""
    refusal = ApiError(403, "requests from another origin are refused", code="origin")
    return error_response(refusal)


async def refuse(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    """Answer a request, or a socket's handshake, with `response`."""
    if scope["type"] == "websocket":
        await receive()
    await response(scope, receive, send)


def _is_guarded(scope: Scope) -> bool:
    if scope["type"] == "websocket":
        return True
    return scope["path"].startswith("/api/") and scope["method"] not in {"GET", "HEAD", "OPTIONS"}


def same_origin(scope: Scope) -> bool:
    """Whether no page asks, or a page of this server."""
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
