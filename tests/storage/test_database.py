"""Connections and transactions: pragmas, IMMEDIATE, cancellation, the log's size, a clean end."""

import asyncio
import gc
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database import WAL_LIMIT_BYTES, Database, sqlite_url
from storage.errors import MissingRowError, StorageError
from storage.records import AnswerText
from storage.storage import Storage
from tests.storage.turns import new_turn

ROOT = Path(__file__).resolve().parents[2]


async def test_every_connection_has_the_pragmas(storage: Storage) -> None:
    async def work(session: AsyncSession) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [await session.scalar(text(f"PRAGMA {name}")) for name in names]

    assert await storage.database.read(work) == ["wal", 1, 1, 10_000]


@pytest.mark.parametrize("name", ["100%20 done.db", "a?b#c.db", "日本語 %(x)s.db"])
async def test_a_path_may_have_any_characters(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new folder %d" / name
    storage = Storage(sqlite_url(path))
    await storage.open()
    await storage.close()
    with sqlite3.connect(path) as connection:
        tables = {row[0] for row in connection.execute("select name from sqlite_master")}
    connection.close()
    assert {"conversations", "messages", "engine_samples", "alembic_version"} <= tables


async def test_write_transactions_read_first_and_never_find_the_database_locked(
    database_path: Path,
) -> None:
    """Two processes' worth of writers that read, wait for each other, then write: a deferred BEGIN fails here."""
    databases = [Database(sqlite_url(database_path)) for _ in range(2)]
    for database in databases:
        await database.open()
    other_may_begin = asyncio.Event()

    async def count(session: AsyncSession) -> None:
        await session.execute(text("create table if not exists counter (n integer)"))
        await session.execute(text("insert into counter values (0)"))

    await databases[0].write(count)

    async def increment(session: AsyncSession) -> None:
        value = await session.scalar(text("select n from counter"))
        other_may_begin.set()
        await asyncio.sleep(0)
        await session.execute(text("update counter set n = :n"), {"n": value + 1})

    first = asyncio.create_task(databases[0].write(increment))
    await other_may_begin.wait()
    await asyncio.gather(first, *(d.write(increment) for d in databases for _ in range(5)))

    async def read(session: AsyncSession) -> int | None:
        return await session.scalar(text("select n from counter"))

    assert await databases[0].read(read) == 11
    for database in databases:
        await database.close()


async def test_cancelling_a_caller_mid_write_leaves_no_connection_checked_out(
    storage: Storage,
) -> None:
    reached = asyncio.Event()

    async def work(session: AsyncSession) -> None:
        await session.execute(text("create table t (n integer)"))
        reached.set()
        await asyncio.sleep(0)
        await session.execute(text("insert into t values (1)"))

    for _ in range(3):
        caller = asyncio.create_task(storage.database.write(work))
        await reached.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        reached.clear()

        async def settle(session: AsyncSession) -> int | None:
            count = await session.scalar(text("select count(*) from t"))
            await session.execute(text("drop table t"))
            return count

        assert await storage.database.write(settle) == 1
    assert storage.database._engine.pool.status().endswith("Current Checked out connections: 0")


async def test_a_failure_that_nobody_waits_for_any_more_is_no_stray_exception(
    storage: Storage,
) -> None:
    reached, complaints = asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: complaints.append(context)
    )

    async def work(session: AsyncSession) -> None:
        reached.set()
        await session.execute(text("select 1"))
        raise MissingRowError("there is no such row")

    caller = asyncio.create_task(storage.database.read(work))
    await reached.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.wait(set(storage.database._tasks))
    del caller
    gc.collect()
    assert complaints == []


async def test_a_failed_transaction_changes_nothing(storage: Storage) -> None:
    async def work(session: AsyncSession) -> None:
        await session.execute(text("delete from alembic_version"))
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await storage.database.write(work)

    async def count(session: AsyncSession) -> int | None:
        return await session.scalar(text("select count(*) from alembic_version"))

    assert await storage.database.read(count) == 1


async def test_the_write_ahead_log_does_not_grow_without_bound(
    storage: Storage, database_path: Path
) -> None:
    log = database_path.with_name(database_path.name + "-wal")
    turn = await storage.conversations.add_turn(new_turn())
    long_texts = (
        {turn.answer_ids[0]: AnswerText(letter * (WAL_LIMIT_BYTES // 4), ())}
        for letter in "abcdefghi"
    )
    with closing(sqlite3.connect(database_path, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from messages").fetchall()
        for _ in range(6):
            await storage.conversations.save_texts(next(long_texts))
        assert log.stat().st_size > WAL_LIMIT_BYTES, "the reader kept the log from being reused"
        reader.execute("rollback")
    for text_of_reuse in long_texts:
        await storage.conversations.save_texts(text_of_reuse)
    assert log.stat().st_size <= WAL_LIMIT_BYTES
    await storage.database.checkpoint()
    assert log.stat().st_size == 0


async def test_after_close_nothing_runs(storage: Storage) -> None:
    await storage.close()
    await storage.close()
    with pytest.raises(StorageError, match="closed"):
        await storage.conversations.page(None, 9)


async def test_a_database_in_memory_works(tmp_path: Path) -> None:
    storage = Storage("sqlite+aiosqlite://")
    await storage.open()
    await asyncio.gather(*(storage.conversations.add_turn(new_turn()) for _ in range(4)))
    assert len((await storage.conversations.page(None, 9)).records) == 4
    await storage.close()


@pytest.mark.parametrize("url", ["nonsense", "sqlite+nosuchdriver:///x.db", "mysql+aiomysql://h/d"])
def test_a_url_that_cannot_work_names_its_option(url: str) -> None:
    with pytest.raises(StorageError, match="--database-url"):
        Storage(url)


async def test_a_file_that_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes" * 100)
    storage = Storage(sqlite_url(path))
    with pytest.raises(StorageError, match=r"notes\.txt.* failed: file is not a database$"):
        await storage.open()
    await storage.close()


@pytest.mark.parametrize("ending", ["await storage.close()", "raise SystemExit(0)"])
def test_the_process_exits_also_without_close(database_path: Path, ending: str) -> None:
    program = f"""
import asyncio
from storage.storage import Storage

async def main():
    storage = Storage({sqlite_url(database_path)!r})
    await storage.open()
    await storage.conversations.page(None, 9)
    {ending}

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
