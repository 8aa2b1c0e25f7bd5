"""Pageturn: `python app.py` serves the page, the socket and the HTTP routes on a local model.

`create_app(settings)` builds the whole application around one engine. What takes long to import is imported where it is
needed: a bad option is refused, and a signal ends the start, without waiting for it.
"""

import os
import signal
import sys

if __name__ == "__main__":
    # Until the server takes signals there is nothing open that must be closed in order, and an exception would end up in whatever
    # is being imported.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))

import asyncio
import gc
import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from api.settings import Settings, load_settings, unknown_variables
from engine.errors import ConfigError, EngineError
from storage.errors import StorageError, UnusableDatabaseError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from api.surface import Engine

logger = logging.getLogger("app")


def create_app(settings: Settings, *, engine: "Engine | None" = None) -> "FastAPI":
    """The whole application. Without an engine, finds or fetches the model that `settings` names.

    Raises ConfigError, ModelLoadError.
    """
    from api.unknown_routes import answer_unknown
    from application import create_api
    from ui.page import mount

    return mount(create_api(settings, engine or build_engine(settings)), answer_unknown)


def build_engine(settings: Settings) -> "Engine":
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


def main(arguments: list[str]) -> int:
    """Serve until a signal; the exit code. 2: an option cannot work, as another app has what it names too; 1: the start failed."""
    try:
        _run(load_settings(arguments))
    except (ConfigError, UnusableDatabaseError) as error:
        return _fail(error, 2)
    except (EngineError, StorageError, OSError) as error:
        return _fail(error, 1)
    return 0


def _run(settings: Settings) -> None:
    from api.server import bind

    _set_up_logging(settings.log_level)
    with bind(settings.host, settings.port) as listener:
        asyncio.run(_serve(settings, build_engine(settings), listener))


async def _serve(settings: Settings, engine: "Engine", listener: socket.socket) -> None:
    """Serve until a signal, or until the model proves unusable: then raises what `wait_ready` does.

    The app is made here because Gradio binds its locks to the event loop that it finds.
    """
    from api.context import ApiContext
    from api.server import Server, address_of

    app = create_app(settings, engine=engine)
    context: ApiContext = app.state.context
    is_listening = asyncio.Event()

    def listening() -> None:
        _show(f"Pageturn is at {address_of(listener)}{_key_hint(settings)}")
        is_listening.set()

    async def drain() -> None:
        if engine.status.state != "dead":
            seconds = f"{settings.shutdown_timeout:g} s to end"
            _show(f"Stopping: what is being written has {seconds}, another Ctrl+C ends it now")
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
    from api.server import HideKeys

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(HideKeys())
    for room in ("app", "api", "chat", "engine", "kernels", "storage", "ui"):
        logging.getLogger(room).setLevel(level.upper())
    if unknown := unknown_variables():
        logger.warning("these environment variables are no options: %s", ", ".join(unknown))


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    logging.shutdown()
    # Everything is closed; taking torch and numba apart module by module would cost seconds of CPU for nothing.
    os._exit(exit_code)
