"""The Content-Security-Policy of the page: of inline scripts only those that the server itself has written into it run.

Each is allowed by its SHA-256, computed from the page as it is sent. `'unsafe-eval'` stays: Gradio compiles the templates
of `gr.HTML` and the `js` of its events with `Function`. Inline styles are what its components are made of.
"""

import base64
import hashlib
import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_INLINE_SCRIPT = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)


def policy_of(page: bytes) -> str:
    """The policy under which a page of HTML can run."""
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in _INLINE_SCRIPT.findall(page))
    return (
        f"default-src 'none'; script-src 'self' 'unsafe-eval' {hashes}; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'self'; form-action 'self'; "
        "frame-ancestors 'none'"
    )


def _digest(text: bytes) -> str:
    return base64.b64encode(hashlib.sha256(text).digest()).decode()


class PagePolicy:
    """Gives answers of HTML their policy, in the place of any other; holds them back until they are complete."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await self.app(scope, receive, _Answer(send).take)


class _Answer:
    """One answer on its way."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._page = b""

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_page(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            await self._add(self._start, message)

    async def _add(self, start: Message, message: Message) -> None:
        self._page += message.get("body", b"")
        if message.get("more_body", False):
            return
        MutableHeaders(scope=start)["Content-Security-Policy"] = policy_of(self._page)
        await self._send(start)
        await self._send({**message, "body": self._page})


def _is_page(start: Message) -> bool:
    return MutableHeaders(scope=start).get("content-type", "").startswith("text/html")
