"""One database: connections, transactions, migration at start, a clean end.

SQLite (the default) runs in WAL mode. Its write transactions begin IMMEDIATE: one that begins as a reader and then
writes fails at once when another has written meanwhile, whatever the busy timeout. Inside the process writers queue
on a lock in order of arrival; the busy timeout is for other processes. Every transaction runs in a task of its own to
its end, so cancelling a caller never leaves a connection checked out or half of a transaction behind.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, event, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from storage.errors import StorageError, UnusableDatabaseError
from storage.migrate import upgrade

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Work = Callable[[AsyncSession], Awaitable[Result]]

BUSY_TIMEOUT_MS = 10_000
WAL_LIMIT_BYTES = 8 * 1024 * 1024
_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA foreign_keys = ON",
    f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}",
    f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}",
)


def sqlite_url(path: Path) -> str:
    """The URL of a database file, whatever characters its path has."""
    url = URL.create("sqlite+aiosqlite", database=str(path))
    return url.render_as_string(hide_password=False)


class Database:
    """Transactions over one URL. `open` first, `close` last; nothing may run after `close` began."""

    def __init__(self, url: str) -> None:
        self._url = _parse(url)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        self._tasks: set[asyncio.Task[Any]] = set()
        self._write_lock = asyncio.Lock()
        self._closed = False
        try:
            self._engine = create_async_engine(self._url, **_pool_options(self._url))
        except (SQLAlchemyError, ImportError) as error:
            raise UnusableDatabaseError(f"--database-url: {error}") from error
        if self._is_sqlite:
            event.listen(self._engine.sync_engine, "connect", _on_connect)
            event.listen(self._engine.sync_engine, "begin", _on_begin)
        self._readers = async_sessionmaker(self._engine, expire_on_commit=False)
        writing = self._engine.execution_options(sqlite_begin="IMMEDIATE")
        self._writers = async_sessionmaker(writing, expire_on_commit=False)

    @property
    def file(self) -> Path | None:
        """The database's file, when it is one."""
        name = self._url.database
        return Path(name) if self._is_sqlite and name and name != ":memory:" else None

    async def open(self) -> None:
        """Make the folder and the schema, or bring an older schema up to date. A failure leaves it closed."""
        try:
            if self.file is not None:
                await asyncio.to_thread(_check_file, self.file)
            await self._run(self._migrate())
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"cannot open the database {self._url!r}: {error}") from error
        except BaseException:
            self._closed = True
            await self._engine.dispose()
            raise

    async def read(self, work: Work[Result]) -> Result:
        """Run `work` in a transaction that sees one state and changes nothing."""
        return await self._run(self._read(work))

    async def write(self, work: Work[Result]) -> Result:
        """Run `work` in a write transaction, committed when it returns and rolled back when it raises."""
        return await self._run(self._write(work))

    async def checkpoint(self) -> None:
        """Move the write-ahead log into the database file and empty it."""
        if self._is_sqlite:
            await self._run(self._checkpoint())

    async def close(self) -> None:
        """Let what runs end, then close every connection (and with it its thread). Idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if self._is_sqlite:
                await self._checkpoint()
        except SQLAlchemyError as error:
            logger.warning("could not empty the write-ahead log: %s", _one_line(error))
        finally:
            await self._engine.dispose()

    async def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        if self._closed:
            coroutine.close()
            raise StorageError("the database is closed")
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_hear_out)
            raise
        except SQLAlchemyError as error:
            message = f"the database {self._url!r} failed: {_one_line(error)}"
            raise StorageError(message) from error

    async def _read(self, work: Work[Result]) -> Result:
        async with self._readers() as session, session.begin():
            return await work(session)

    async def _write(self, work: Work[Result]) -> Result:
        async with self._write_lock, self._writers() as session, session.begin():
            return await work(session)

    async def _migrate(self) -> None:
        writing = self._engine.execution_options(sqlite_begin="IMMEDIATE")
        async with self._write_lock, writing.begin() as connection:
            await connection.run_sync(upgrade)

    async def _checkpoint(self) -> None:
        outside_transactions = self._engine.execution_options(sqlite_begin=None)
        async with self._write_lock, outside_transactions.connect() as connection:
            await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))


def _parse(url: str) -> URL:
    try:
        return make_url(url)
    except SQLAlchemyError as error:
        raise UnusableDatabaseError(f"--database-url: {error}") from error


def _check_file(path: Path) -> None:
    """Open the file once before aiosqlite does: its thread does not outlive a failed connect in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sqlite3.connect(path).close()


def _hear_out(task: asyncio.Task[Any]) -> None:
    """Take the result of a transaction that nobody waits for any more; a failure of the database is logged."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, SQLAlchemyError):
        logger.warning("the database failed: %s", _one_line(error))


def _one_line(error: SQLAlchemyError) -> str:
    """What the database itself said, without the statement, which may hold a user's text."""
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _pool_options(url: URL) -> dict[str, Any]:
    """A database in memory lives in its one connection, which transactions take in turn."""
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        return {"poolclass": AsyncAdaptedQueuePool, "pool_size": 1, "max_overflow": 0}
    return {}


def _on_connect(connection: Any, _record: object) -> None:
    """The driver must not begin transactions by itself: `_on_begin` does."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _on_begin(connection: Any) -> None:
    mode = connection.get_execution_options().get("sqlite_begin", "DEFERRED")
    if mode is not None:
        connection.exec_driver_sql(f"BEGIN {mode}")
