"""Answers with a document of which parts may be `Written`; sent in pieces."""

from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chat.json_parts import parts_of, portions


class JsonAnswer(Response):
    """One such document."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(media_type="application/json")
        self._document = document

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = list(parts_of(self._document))
        length = str(sum(map(len, parts))).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for body in portions(parts):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
