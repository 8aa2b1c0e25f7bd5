"""A turn over the socket, and what was said in it."""

from typing import Any

from tests.api.conftest import Client

ANSWER = "".join(f"word0-{i} " for i in range(12))


def text_of(frames: list[dict[str, Any]], index: int = 0) -> str:
    deltas = (f for f in frames if f["type"] == "delta" and f["index"] == index)
    return "".join(frame["text"] for frame in deltas)


async def chat(client: Client, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A whole turn: `started` and the generation's events."""
    await client.send("send", **fields)
    return await client.expect("started"), await client.until("finished")
