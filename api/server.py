"""uvicorn with an orderly end: what runs gets its time and sockets are told why, before connections are cut."""

import asyncio
import contextlib
import errno
import logging
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, WWWScope
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import HANDLED_SIGNALS

from api.websocket import MAX_FRAME_BYTES
from engine.errors import ConfigError

PING_INTERVAL_S = 20.0
CUT_AFTER_S = 2


class HttpProtocol(H11Protocol):
    """uvicorn's, which goes on writing to a lost connection until it is told of the loss."""

    def __init__(self, config: uvicorn.Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self.app = self._serve

    async def _serve(
        self, scope: WWWScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        async def send_to_the_living(message: ASGISendEvent) -> None:
            await _hear_of_loss(self.transport)
            await send(message)

        await self.config.loaded_app(scope, receive, send_to_the_living)


class SocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, which goes on writing as well, and takes a socket that was refused with an HTTP answer for one that got none,
    and logs an error.
    """

    async def send(self, message: ASGISendEvent) -> None:
        await _hear_of_loss(self.transport)
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True


class Server(uvicorn.Server):
    """Serves until SIGINT or SIGTERM, then stops listening, awaits `drain` and cuts what is left. Another signal makes it `hurry`."""

    def __init__(
        self,
        app: ASGIApp,
        log_level: str,
        on_ready: Callable[[], None],
        drain: Callable[[], Awaitable[None]],
        hurry: Callable[[], None],
    ) -> None:
        """`on_ready` is called once connections and signals are taken; `hurry` lets `drain` end at once."""
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws=SocketProtocol,
            ws_max_size=MAX_FRAME_BYTES,
            ws_ping_interval=PING_INTERVAL_S,
            ws_ping_timeout=PING_INTERVAL_S,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            log_level="debug" if log_level == "debug" else "warning",
            access_log=log_level == "debug",
            server_header=False,
            timeout_graceful_shutdown=CUT_AFTER_S,
        )
        super().__init__(config)
        self._on_ready, self._drain, self._hurry = on_ready, drain, hurry

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On the first signal everything may come to its end, on a second one it comes now."""
        if self.should_exit:
            self._loop.call_soon_threadsafe(self._hurry)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's, without raising the signal again at the end: an orderly end is a success."""
        self._loop = asyncio.get_running_loop()
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _hear_of_loss(transport: asyncio.Transport) -> None:
    """Let the event loop tell a protocol that its connection is lost.

    What sends without ever waiting would be heard first, and asyncio warns of writes to what is lost.
    """
    if transport.is_closing():
        await asyncio.sleep(0)


class HideKeys(logging.Filter):
    """Keeps API keys in query strings out of the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "api_key=" in text:
            record.msg, record.args = re.sub(r"api_key=[^&\s\"]*", "api_key=***", text), None
        return True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket: from now on the address is ours, and who connects waits. Raises ConfigError when it cannot be had.

    One that is only bound would keep nobody from the address. The protocol is named because asyncio lets connections send small pieces at once only where it is.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise _unusable(host, port, error) from None
    return listener


def _unusable(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        advice = "choose another, or 0 for any that is free"
        return ConfigError("--port", port, advice, problem="is in use")
    if error.errno == errno.EACCES:
        advice = "choose one from 1024 on"
        return ConfigError("--port", port, advice, problem="may not be used by this user")
    return ConfigError("--host", host, f"an address of this machine ({error.strerror})")


def address_of(listener: socket.socket) -> str:
    """`http://127.0.0.1:7860` for a listening socket."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"
