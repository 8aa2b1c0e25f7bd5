"""One line in the log for every request of a program: who, what, how it ended, how many tokens, how long. Never its text.

`X-Request-Id` is the client's when it is 1 to 128 visible ASCII characters, else made here; every answer carries it. The
lines are JSON, at level info of the logger `api.access` for what programs ask of the API and for all that changes something. At
level debug are the page's reads (a browser says that its page asks), its files, `/health`, `/ping` and `/metrics`, which
come all the time. A socket's line comes when it closes.
"""

import json
import logging
import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import shorten
from engine.outputs import CandidateFinished

logger = logging.getLogger(__name__)

HEADER = "X-Request-Id"
LOGGED = re.compile(r"/(v1|api|ws|tokenize|detokenize)(/|$)")
CLIENT_CLOSED_REQUEST = 499


@dataclass(slots=True)
class Access:
    """What is known of a request. `status` stays CLIENT_CLOSED_REQUEST when nobody waited for an answer."""

    request_id: str
    method: str
    path: str
    started: float = field(default_factory=time.monotonic)
    status: int = CLIENT_CLOSED_REQUEST
    tokens: dict[str, int | float] = field(default_factory=dict)

    def note_candidate(self, end: CandidateFinished) -> None:
        """Count a candidate's tokens; a prompt counts once, and not at all if it ended while it waited.

        The time to the first token is the request's earliest.
        """
        is_first = end.index == 0
        was_begun = end.timings.prefill_ms > 0
        counts = {
            "completion_tokens": end.usage.completion_tokens,
            "prompt_tokens": end.usage.prompt_tokens if is_first and was_begun else 0,
            "cached_tokens": end.usage.cached_tokens if is_first else 0,
        }
        for name, count in counts.items():
            self.tokens[name] = self.tokens.get(name, 0) + count
        first = round(end.timings.ttft_ms, 1)
        self.tokens["ttft_ms"] = min(first, self.tokens.get("ttft_ms", first))

    def line(self) -> str:
        """The request as one line of JSON."""
        ms = round((time.monotonic() - self.started) * 1e3, 1)
        known = {"request_id": self.request_id, "method": self.method, "path": shorten(self.path)}
        return json.dumps(known | {"status": self.status} | self.tokens | {"ms": ms})


class AccessLog:
    """Gives every request its id, and its line when it is over."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self.app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if re.fullmatch(r"[!-~]{1,128}", given) else uuid.uuid4().hex
        access = Access(request_id, scope.get("method", "SOCKET"), scope["path"])
        scope.setdefault("state", {})["access"] = access

        async def named(message: Message) -> None:
            if "status" in message:
                access.status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            elif message["type"] == "websocket.accept":
                access.status = 101
            await send(message)

        try:
            await self.app(scope, receive, named)
        finally:
            level = logging.DEBUG if _is_frequent(scope) else logging.INFO
            if logger.isEnabledFor(level):
                logger.log(level, "%s", self._without_keys(access))

    def _without_keys(self, access: Access) -> str:
        """The line of a request that may show a key where none belongs, as its id or in its path."""
        for key in self._keys:
            access.request_id = access.request_id.replace(key, "***")
            access.path = access.path.replace(key, "***")
        return access.line()


def _is_frequent(scope: Scope) -> bool:
    is_read = scope.get("method") in ("GET", "HEAD")
    is_of_page = Headers(scope=scope).get("Sec-Fetch-Site") == "same-origin"
    return not LOGGED.match(scope["path"]) or (is_read and is_of_page)


def access_of(scope: Scope) -> Access:
    """The request's record, from inside a route."""
    return scope["state"]["access"]
