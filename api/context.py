"""What the routes need from the app, in one value: `app.state.context`."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import HTTPConnection

from api.metrics import Metrics
from api.rendering import Rendering
from api.surface import Engine
from api.topics import EngineTopics
from chat.ports import Stream
from chat.service import ChatService

ABORT_TIMEOUT_S = 2.0


class Socket(Protocol):
    """A live WebSocket, for shutdown."""

    async def close(self, code: int) -> None:
        """Send what is queued, then close."""


@dataclass
class ApiContext:
    """One app's engine and chat, and what clients have open: HTTP streams with their tasks, and sockets."""

    engine: Engine
    chat: ChatService
    metrics: Metrics
    topics: EngineTopics
    rendering: Rendering
    draining: bool = False
    streams: dict[Stream, asyncio.Task[None]] = field(default_factory=dict)
    sockets: set[Socket] = field(default_factory=set)

    async def drain(self, timeout: float) -> None:
        """Refuse new work, give what runs `timeout` seconds, abort the rest, close the sockets with 1001. Idempotent."""
        if self.draining:
            return
        self.draining = True
        await asyncio.gather(self.chat.shutdown(timeout), self._drain_streams(timeout))
        closing = [asyncio.create_task(socket.close(1001)) for socket in self.sockets]
        await _wait(closing, ABORT_TIMEOUT_S)

    async def _drain_streams(self, timeout: float) -> None:
        await _wait(self.streams.values(), timeout)
        for stream in self.streams:
            stream.abort()
        await _wait(self.streams.values(), ABORT_TIMEOUT_S)


def context_of(connection: HTTPConnection) -> ApiContext:
    """The context of the app that serves this request or socket."""
    return connection.app.state.context


async def _wait(tasks: Iterable[asyncio.Task[None]], timeout: float) -> None:
    if running := set(tasks):
        await asyncio.wait(running, timeout=timeout)
