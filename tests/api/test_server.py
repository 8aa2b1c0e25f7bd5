"""Connections of the server's listening socket."""

import asyncio
import json
import socket
import struct
from typing import Any

import pytest

from api.server import bind
from engine.errors import ConfigError
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine


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


def reset(transport: Any) -> None:
    """Go without reading what is there: whoever writes on gets an error."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def test_nothing_is_written_to_a_socket_that_is_lost(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async with running.ready_socket() as client:
        for _ in range(300):
            await client.send("ping")
        reset(client.socket.transport)
    await running.stop()
    assert caplog.messages == []


async def test_nothing_is_written_to_a_stream_whose_client_is_lost(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(FakeEngine(lambda prompt, index: ["word "] * 5000))
    host, port = running.address.split(":")
    body = json.dumps({"prompt": "a", "n": 8, "max_tokens": 5000, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(5):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write((head + body).encode())
        await reader.readuntil(b"data:")
        reset(writer.transport)
    await running.stop()
    assert caplog.messages == []
