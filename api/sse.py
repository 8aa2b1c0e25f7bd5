"""Server-sent events, written by hand so that the headers go out with the first of them.

What belongs together goes out together: each body is a system call here and a wake-up at the client.
"""

from typing import Any

from pydantic_core import to_json
from starlette.types import Send

from chat.json_parts import parts_of

DONE = b"data: [DONE]\n\n"
"""The last event of OpenAI's streams."""


def as_event(document: dict[str, Any], name: str | None = None) -> bytes:
    """An event with a JSON document; `name` is its type, if events are named."""
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, to_json(document))


def as_large_event(document: dict[str, Any]) -> bytes:
    """The same of a document of which parts are `Written`."""
    return b"".join((b"data: ", *parts_of(document), b"\n\n"))


async def start_stream(send: Send) -> None:
    """Send the headers."""
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_events(send: Send, *events: bytes) -> None:
    """Events in order, if there are any."""
    if events:
        await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})


async def end_stream(send: Send) -> None:
    """Nothing follows."""
    await send({"type": "http.response.body", "body": b""})
