"""`create_api(settings, engine)`: every room joined around one engine, without the page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import (
    conversations,
    defaults,
    engine_room,
    messages,
    openai,
    openapi,
    operations,
    responses,
    transfers,
    unknown_routes,
    websocket,
)
from api.access import AccessLog
from api.context import ABORT_TIMEOUT_S, ApiContext, within
from api.documents import Documents
from api.errors import install_error_handlers
from api.guards import BodyLimit, CutShort, OriginCheck, SecurityHeaders
from api.keys import KeyCheck
from api.machine import Machine
from api.metrics import Metrics
from api.rendering import Rendering
from api.settings import Settings
from api.surface import Engine
from api.topics import EngineTopics
from chat.service import ChatService
from storage.database import sqlite_url
from storage.storage import Storage
from ui.render import StreamRenderer


def create_api(settings: Settings, engine: Engine) -> FastAPI:
    """Socket and HTTP routes around an engine; starting the app starts the engine, stopping ends it."""
    storage = Storage(settings.database_url or sqlite_url(settings.data_dir / "pageturn.db"))
    chat = ChatService(engine, storage, orphan_timeout=settings.orphan_timeout)
    documents = Documents(engine, chat, Machine())
    topics, rendering = EngineTopics(documents), Rendering(StreamRenderer)
    context = ApiContext(engine, chat, Metrics(engine), documents, topics, rendering)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await storage.open()
        try:
            await chat.start()
            engine.start()
            yield
        finally:
            await context.drain(settings.shutdown_timeout)
            await within(ABORT_TIMEOUT_S, engine.shutdown(), "the engine did not end")
            await storage.close()

    app = FastAPI(title="Pageturn", lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.state.context = context
    rooms = (
        operations,
        openapi,
        engine_room,
        openai,
        responses,
        transfers,
        conversations,
        messages,
        defaults,
        websocket,
        unknown_routes,
    )
    for room in rooms:
        app.include_router(room.router)
    install_error_handlers(app)
    _add_guards(app, settings)
    return app


def _add_guards(app: FastAPI, settings: Settings) -> None:
    """Innermost first: an answer of any guard carries the security headers, and is logged."""
    app.add_middleware(BodyLimit)
    app.add_middleware(CutShort)
    app.add_middleware(OriginCheck)
    if keys := settings.api_keys:
        app.add_middleware(KeyCheck, keys=keys)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(AccessLog, keys=settings.api_keys)
