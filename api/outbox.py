"""The outgoing half of a socket: one bounded queue, one sender. Whoever puts a frame waits while it is full."""

import asyncio
import logging
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from api.frames import RequestId, error_fields, frame_text

logger = logging.getLogger(__name__)

QUEUE_FRAMES = 64


class Outbox:
    """Frames on their way to one client, in order."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._queue: asyncio.Queue[str | bytes | int] = asyncio.Queue(QUEUE_FRAMES)

    async def put(self, frame: str | bytes) -> None:
        """Queue a whole frame."""
        await self._queue.put(frame)

    async def put_frame(
        self, kind: str, fields: dict[str, Any], request_id: RequestId = None
    ) -> None:
        """Queue a JSON frame."""
        await self._queue.put(frame_text(kind, fields, request_id))

    async def put_error(self, error: Exception, request_id: RequestId = None, **extra: str) -> None:
        """Queue an `error` frame; what nobody foresaw and a database that fails are logged."""
        fields = error_fields(error)
        if fields["code"] in ("internal_error", "storage_failed"):
            logger.error("a socket's request failed", exc_info=error)
        await self.put_frame("error", fields | extra, request_id)

    async def put_close(self, code: int) -> None:
        """Close the socket once everything before this has gone."""
        await self._queue.put(code)

    async def send_all(self) -> None:
        """Send what is queued until the socket is closed by either side."""
        try:
            while True:
                match await self._queue.get():
                    case str() as text:
                        await self._websocket.send_text(text)
                    case bytes() as data:
                        await self._websocket.send_bytes(data)
                    case code:
                        await self._websocket.close(code)
                        return
        except WebSocketDisconnect:
            return
