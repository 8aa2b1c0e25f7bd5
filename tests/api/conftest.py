"""A real server on a free loopback port around a fake engine, and clients for it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection, connect

from api.context import ApiContext
from api.server import Server, address_of, bind
from api.settings import Settings
from application import create_api
from tests.fake_engine import FakeEngine


class Client:
    """A socket that speaks frames."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def receive(self) -> dict[str, Any]:
        """The next JSON frame."""
        async with asyncio.timeout(10):
            return json.loads(await self.socket.recv())

    async def expect(self, kind: str) -> dict[str, Any]:
        """The next frame, which must be of this type."""
        frame = await self.receive()
        assert frame["type"] == kind, frame
        return frame

    async def skip_to(self, *kinds: str) -> dict[str, Any]:
        """The next frame of one of these types; others are dropped."""
        while (frame := await self.receive())["type"] not in kinds:
            pass
        return frame

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """All frames up to and including the next of this type."""
        frames = [await self.receive()]
        while frames[-1]["type"] != kind:
            frames.append(await self.receive())
        return frames


@dataclass
class Running:
    """A running server."""

    app: FastAPI
    server: Server
    engine: FakeEngine
    address: str
    task: asyncio.Task[None]

    @property
    def context(self) -> ApiContext:
        return self.app.state.context

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @asynccontextmanager
    async def socket(self, query: str = "", **options: Any) -> AsyncIterator[Client]:
        """A connection that has not read its `ready` frame yet."""
        async with connect(f"ws://{self.address}/ws/chat{query}", **options) as socket:
            yield Client(socket)

    @asynccontextmanager
    async def ready_socket(self, query: str = "", **options: Any) -> AsyncIterator[Client]:
        async with self.socket(query, **options) as client:
            await client.expect("ready")
            yield client

    def http(self, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=10, trust_env=False, **options)

    async def stop(self) -> None:
        """As SIGTERM does; returns when the server has ended."""
        self.server.should_exit = True
        await self.task


Start = Callable[..., Any]


@asynccontextmanager
async def serve(engine: FakeEngine, data_dir: Path, **options: Any) -> AsyncIterator[Running]:
    """A server on a free port with a database of its own."""
    settings = Settings(data_dir=data_dir, **{"shutdown_timeout": 0.2, **options})
    app = create_api(settings, engine)
    listener = bind("127.0.0.1", 0)
    started = asyncio.Event()
    context = app.state.context
    drain = partial(context.drain, settings.shutdown_timeout)
    server = Server(app, "warning", started.set, drain, context.hurry)

    async def run() -> None:
        async with app.router.lifespan_context(app):
            await server.serve(sockets=[listener])

    task = asyncio.create_task(run())
    waiter = asyncio.create_task(started.wait())
    await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
    address = address_of(listener).removeprefix("http://")
    running = Running(app, server, engine, address, task)
    try:
        yield running
    finally:
        await running.stop()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """`await start(engine, **settings)` gives a running server; all end with the test."""
    async with AsyncExitStack() as stack:

        async def begin(engine: FakeEngine | None = None, **options: Any) -> Running:
            serving = serve(engine or FakeEngine(), tmp_path, **options)
            return await stack.enter_async_context(serving)

        yield begin


@pytest.fixture
async def running(start: Start) -> Running:
    """A server around a plain FakeEngine."""
    return await start()
