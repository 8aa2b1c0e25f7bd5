"""One owner of a database file at a time."""

from pathlib import Path

import pytest
from filelock import Timeout

from storage.database import sqlite_url
from storage.errors import StorageError
from storage.storage import Storage


async def test_where_no_lock_can_be_made_nobody_else_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under /proc, where filelock tells the same as of a lock that another process has."""
    storage = Storage(sqlite_url(tmp_path / "pageturn.db"))

    def time_out(**_: object) -> None:
        raise Timeout("no lock")

    monkeypatch.setattr(storage._lock, "acquire", time_out)
    with pytest.raises(StorageError, match="cannot open the database"):
        await storage.open()


async def test_a_database_file_has_one_owner_until_it_is_closed(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "pageturn.db")
    first, second = Storage(url), Storage(url)
    await first.open()
    with pytest.raises(StorageError, match=r"another app uses the database .*pageturn\.db; end it"):
        await second.open()
    await first.close()
    third = Storage(url)
    await third.open()
    await third.close()


async def test_an_open_that_fails_gives_the_file_back(tmp_path: Path) -> None:
    file = tmp_path / "pageturn.db"
    file.write_text("no database, and long enough to be taken for a broken one" * 20)
    with pytest.raises(StorageError, match="not a database"):
        await Storage(sqlite_url(file)).open()
    file.unlink()
    again = Storage(sqlite_url(file))
    await again.open()
    await again.close()


async def test_a_database_in_memory_needs_no_lock() -> None:
    first, second = Storage("sqlite+aiosqlite://"), Storage("sqlite+aiosqlite://")
    await first.open()
    await second.open()
    await first.close()
    await second.close()
