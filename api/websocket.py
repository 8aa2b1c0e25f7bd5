"""/ws/chat: one connection of a page or a program, as docs/protocol.md says.

A connection reads one frame after the other and answers each. What it listens to runs in `Subscriptions`; everything
leaves through its `Outbox`, so a slow reader slows its own subscriptions down, and the hub then gives it a snapshot in
place of what it missed.
"""

import asyncio

from fastapi import APIRouter
from starlette.websockets import WebSocket

from api.context import ApiContext, context_of
from api.errors import ApiError, shorten
from api.frames import (
    EVENT_TYPES,
    PROTOCOL_VERSION,
    AnyFrame,
    Attach,
    BadFrame,
    Continue,
    Edit,
    Ping,
    Regenerate,
    Select,
    Send,
    Stop,
    Subscribe,
    Unsubscribe,
    parse_frame,
)
from api.outbox import Outbox
from api.rendering import Rendering
from api.subscriptions import Subscriptions
from chat.events import Started
from chat.wire import to_wire
from engine.errors import EngineError, EngineNotReadyError, RequestError

router = APIRouter()

MAX_FRAME_BYTES = 2**20
LOADING_INTERVAL_S = 0.25


@router.websocket("/ws/chat")
async def chat_socket(websocket: WebSocket) -> None:
    """Serve one client until it goes, or the server does."""
    context = context_of(websocket)
    renders = websocket.query_params.get("format") == "html"
    await websocket.accept()
    connection = Connection(websocket, context, context.rendering if renders else None)
    context.sockets.add(connection)
    try:
        await connection.run()
    finally:
        context.sockets.discard(connection)


@router.get("/ws/chat")
async def chat_without_socket() -> None:
    """A plain request finds out what this path is."""
    raise ApiError(426, "GET /ws/chat: this path is a WebSocket", headers={"Upgrade": "websocket"})


class Connection:
    """One client."""

    def __init__(
        self, websocket: WebSocket, context: ApiContext, rendering: Rendering | None
    ) -> None:
        self._websocket, self._context, self._chat = websocket, context, context.chat
        self._outbox = Outbox(websocket)
        self._subscriptions = Subscriptions(context, self._outbox, rendering)

    async def run(self) -> None:
        """Return when the client has gone or `close` has been carried out."""
        tasks = [asyncio.create_task(work) for work in (self._read(), self._outbox.send_all())]
        announcement = asyncio.create_task(self._announce())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, announcement):
                task.cancel()
            await asyncio.gather(*tasks, announcement, return_exceptions=True)
            await self._subscriptions.aclose()

    async def close(self, code: int) -> None:
        """Let what is queued go out, then close."""
        await self._outbox.put_close(code)

    async def _announce(self) -> None:
        """`loading` until the engine is ready, then `ready`; an error if it never will be."""
        engine, shown = self._context.engine, None
        while True:
            try:
                info = engine.info
                break
            except EngineNotReadyError:
                status = engine.status
            except EngineError as error:
                await self._outbox.put_error(error)
                return
            if status != shown:
                fields = {"stage": status.stage, "fraction": status.fraction}
                await self._outbox.put_frame("loading", fields)
            shown = status
            await asyncio.sleep(LOADING_INTERVAL_S)
        fields = {"protocol": PROTOCOL_VERSION, "model": info.model_name}
        await self._outbox.put_frame("ready", fields | {"max_model_len": info.max_model_len})

    async def _read(self) -> None:
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            if text is None:
                refusal = RequestError(
                    "binary frames are not read", param=None, code="invalid_frame"
                )
                await self._outbox.put_error(refusal)
            else:
                await self._handle(parse_frame(text))

    async def _handle(self, frame: AnyFrame | BadFrame) -> None:
        if isinstance(frame, BadFrame):
            await self._outbox.put_error(frame.error, frame.request_id)
            return
        try:
            await self._carry_out(frame)
        except Exception as error:
            named = {}
            if isinstance(frame, Stop | Attach):
                named = {"generation_id": shorten(frame.generation_id)}
            await self._outbox.put_error(error, frame.request_id, **named)

    async def _carry_out(self, frame: AnyFrame) -> None:
        match frame:
            case Send() | Regenerate() | Continue() | Edit():
                async with self._subscriptions.order:
                    started = await self._begin(frame)
                    await self._outbox.put_frame("started", to_wire(started), frame.request_id)
                    await self._subscriptions.attach(started.generation_id, 0)
            case Select():
                selected = await self._chat.select(frame.message_id)
                await self._outbox.put_frame("selected", to_wire(selected), frame.request_id)
            case Stop():
                ended = self._chat.stop(frame.generation_id, frame.index)
                if ended is not None and frame.request_id is not None:
                    kind = EVENT_TYPES[type(ended)]
                    await self._outbox.put_frame(kind, to_wire(ended), frame.request_id)
            case Attach():
                async with self._subscriptions.order:
                    await self._subscriptions.attach(frame.generation_id, frame.from_seq)
            case Subscribe():
                self._subscriptions.watch(frame)
            case Unsubscribe():
                self._subscriptions.unwatch(frame.topic, frame.id)
                named = {"topic": frame.topic} | ({"id": frame.id} if frame.id is not None else {})
                await self._outbox.put_frame("unsubscribed", named, frame.request_id)
            case Ping():
                await self._outbox.put_frame("pong", {}, frame.request_id)

    async def _begin(self, frame: Send | Regenerate | Continue | Edit) -> Started:
        match frame:
            case Send(system_prompt=str()) if frame.conversation_id or frame.parent_id:
                message = "system_prompt: only for a new conversation; PATCH one that is there"
                raise RequestError(message, param="system_prompt")
            case Send(conversation_id=None, parent_id=None):
                return await self._chat.start_conversation(
                    frame.content,
                    system_prompt=frame.system_prompt,
                    n=frame.n,
                    sampling=frame.sampling,
                )
            case Send():
                return await self._chat.send(
                    frame.content,
                    conversation_id=frame.conversation_id,
                    parent_id=frame.parent_id,
                    n=frame.n,
                    sampling=frame.sampling,
                )
            case Regenerate():
                return await self._chat.regenerate(
                    frame.message_id, n=frame.n, sampling=frame.sampling
                )
            case Continue():
                return await self._chat.continue_answer(
                    frame.message_id, frame.at_token, n=frame.n, sampling=frame.sampling
                )
            case Edit():
                return await self._chat.edit(
                    frame.message_id, frame.content, n=frame.n, sampling=frame.sampling
                )
