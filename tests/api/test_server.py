"""Connections of the server's listening socket."""

import asyncio
import socket

import pytest

from api.server import bind
from engine.errors import ConfigError


def test_an_address_is_taken_before_anything_is_served() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            bind("127.0.0.1", port)
    line = f"--port: {port} is in use; choose another, or 0 for any that is free"
    assert str(refused.value) == line


async def test_small_pieces_are_sent_at_once() -> None:
    """Nagle's algorithm would hold a piece back until the client's delayed acknowledgement of the one before: 40 ms."""
    settings: list[int] = []
    connected = asyncio.Event()

    def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        settings.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        connected.set()

    listener = bind("127.0.0.1", 0)
    async with await asyncio.start_server(note, sock=listener), asyncio.timeout(10):
        _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        await connected.wait()
        writer.close()
        await writer.wait_closed()
    assert settings == [1]
