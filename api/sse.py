"""Server-sent events, written by hand so that the headers go out with the first of them."""

import json
from typing import Any

from starlette.types import Send


async def start_stream(send: Send) -> None:
    """Send the headers."""
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_data(send: Send, document: dict[str, Any], name: str | None = None) -> None:
    """One event with a JSON document; `name` is its type, if events are named."""
    await send_text(send, json.dumps(document, ensure_ascii=False, separators=(",", ":")), name)


async def send_text(send: Send, data: str, name: str | None = None) -> None:
    """One event with a line of text."""
    head = "" if name is None else f"event: {name}\n"
    body = f"{head}data: {data}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def end_stream(send: Send) -> None:
    """Nothing follows."""
    await send({"type": "http.response.body", "body": b""})
