"""What the routes need from the app, in one value: `app.state.context`."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import HTTPConnection

from api.documents import Documents
from api.metrics import Metrics
from api.rendering import Rendering
from api.surface import Engine
from api.topics import EngineTopics
from chat.patience import Patience
from chat.ports import Stream
from chat.service import ChatService

logger = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 3.0


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
    documents: Documents
    topics: EngineTopics
    rendering: Rendering
    draining: bool = False
    streams: dict[Stream, asyncio.Task[None]] = field(default_factory=dict)
    sockets: set[Socket] = field(default_factory=set)
    patience: Patience = field(default_factory=Patience)

    async def drain(self, timeout: float) -> None:
        """Refuse new work, give what runs `timeout` seconds, abort the rest, close the sockets with 1001. Idempotent."""
        if self.draining:
            return
        self.draining = True
        ending = asyncio.gather(self.chat.shutdown(timeout), self._drain_streams(timeout))
        await within(timeout + ABORT_TIMEOUT_S, ending, "what ran did not end when aborted")
        closing = [asyncio.create_task(socket.close(1001)) for socket in self.sockets]
        await _wait(closing, ABORT_TIMEOUT_S)

    def hurry(self) -> None:
        """Let a drain, also one to come, abort at once what runs."""
        self.patience.end()
        self.chat.hurry()

    async def _drain_streams(self, timeout: float) -> None:
        await self.patience.wait(set(self.streams.values()), timeout)
        for stream in self.streams:
            stream.abort()
        await _wait(self.streams.values(), ABORT_TIMEOUT_S)


async def within(timeout: float, work: Awaitable[object], complaint: str) -> None:
    """Wait for `work` for `timeout` seconds; then log the complaint and go on without it."""
    try:
        await asyncio.wait_for(work, timeout)
    except TimeoutError:
        logger.warning("shutdown: %s; going on without it", complaint)


def context_of(connection: HTTPConnection) -> ApiContext:
    """The context of the app that serves this request or socket."""
    return connection.app.state.context


async def _wait(tasks: Iterable[asyncio.Task[None]], timeout: float) -> None:
    if running := set(tasks):
        await asyncio.wait(running, timeout=timeout)
