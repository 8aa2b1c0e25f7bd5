"""Pageturn: `python app.py` serves the page, the socket and the HTTP routes on a local model.

`create_app(settings)` builds the whole application around one engine; `create_api` is the same without the page.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

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
from api.server import HideKeys, Server, address_of, bind
from api.settings import Settings, load_settings, unknown_variables
from api.surface import Engine
from api.topics import EngineTopics
from chat.service import ChatService
from engine.errors import ConfigError, EngineError
from storage.database import sqlite_url
from storage.errors import StorageError
from storage.storage import Storage
from ui.render import StreamRenderer

logger = logging.getLogger("app")


def create_app(settings: Settings, *, engine: Engine | None = None) -> FastAPI:
    """The whole application. Without an engine, finds or fetches the model that `settings` names.

    Raises ConfigError, ModelLoadError.
    """
    from ui.page import mount

    return mount(create_api(settings, engine or build_engine(settings)))


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
    )
    for router in (*(room.router for room in rooms), operations.leftovers):
        app.include_router(router)
    install_error_handlers(app)
    _add_guards(app, settings)
    return app


def build_engine(settings: Settings) -> Engine:
    """The real engine for the settings' model, not started; fetches the model with a progress bar if it must.

    Raises ConfigError, ModelLoadError.
    """
    from engine.async_engine import AsyncEngine
    from engine.loader.fetch import resolve_model

    options = settings.engine_config(Path(), settings.model)
    if {options.dtype, options.kv_cache_dtype, options.quantization} != {"auto"}:
        # Asked only then: torch, which knows the machine, takes seconds to import.
        from engine.placement import check_numbers

        check_numbers(options)
    files = resolve_model(settings.model, settings.data_dir)
    return AsyncEngine(settings.engine_config(files.path, files.name))


def _add_guards(app: FastAPI, settings: Settings) -> None:
    """Innermost first: an answer of any guard carries the security headers, and is logged."""
    app.add_middleware(BodyLimit)
    app.add_middleware(CutShort)
    app.add_middleware(OriginCheck)
    if keys := settings.api_keys:
        app.add_middleware(KeyCheck, keys=keys)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(AccessLog, keys=settings.api_keys)


def main(arguments: list[str]) -> int:
    """Serve until a signal; the exit code. 2: an option cannot work; 1: the start failed."""
    try:
        settings = load_settings(arguments)
        _set_up_logging(settings.log_level)
        with bind(settings.host, settings.port) as listener:
            asyncio.run(_serve(settings, build_engine(settings), listener))
    except ConfigError as error:
        return _fail(error, 2)
    except (EngineError, StorageError, OSError) as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(settings: Settings, engine: Engine, listener: socket.socket) -> None:
    """Serve until a signal, or until the model proves unusable: then raises what `wait_ready` does.

    The app is made here because Gradio binds its locks to the event loop that it finds.
    """
    app = create_app(settings, engine=engine)
    context: ApiContext = app.state.context
    is_listening = asyncio.Event()

    def listening() -> None:
        _show(f"Pageturn is at {address_of(listener)}{_key_hint(settings)}")
        is_listening.set()

    async def drain() -> None:
        seconds = f"{settings.shutdown_timeout:g}"
        _show(f"Stopping: what is being written has {seconds} s to end, another Ctrl+C ends it now")
        await context.drain(settings.shutdown_timeout)

    server = Server(app, settings.log_level, listening, drain, context.hurry)

    async def load() -> None:
        try:
            await engine.wait_ready()
        except EngineError:
            server.should_exit = True
            raise
        # What has been loaded stays: no collection looks at it again, which would hold everybody up for longer than a step.
        gc.freeze()
        await is_listening.wait()
        _show(f"The model is ready: {engine.info.model_name}")

    async with app.router.lifespan_context(app):
        loading = asyncio.create_task(load())
        await server.serve(sockets=[listener])
        loading.cancel()
        await asyncio.wait([loading])
    if not loading.cancelled():
        loading.result()


def _key_hint(settings: Settings) -> str:
    return " (open it with ?api_key=KEY)" if settings.api_keys else ""


def _show(line: str) -> None:
    """To whoever started the app, at once. Who has left off reading, or never wanted to, does not end it."""
    if sys.stdout is None:
        return
    with suppress(OSError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _fail(error: Exception, code: int) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"{error}\n")
    return code


def _set_up_logging(level: str) -> None:
    """Our own loggers at `level`, other packages' from warning on; keys in addresses are masked."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(HideKeys())
    for room in ("app", "api", "chat", "engine", "kernels", "storage", "ui"):
        logging.getLogger(room).setLevel(level.upper())
    if unknown := unknown_variables():
        logger.warning("these environment variables are no options: %s", ", ".join(unknown))


if __name__ == "__main__":
    # Until the server takes signals there is nothing open that must be closed in order, and an exception would end up in whatever
    # is being imported.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    exit_code = main(sys.argv[1:])
    logging.shutdown()
    # Everything is closed; taking torch and numba apart module by module would cost seconds of CPU for nothing.
    os._exit(exit_code)
