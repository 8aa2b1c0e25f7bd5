"""`Storage`: the whole room behind one object."""

import asyncio
from pathlib import Path

from filelock import FileLock, Timeout

from storage.conversations import ConversationStore
from storage.database import Database
from storage.errors import StorageError, UnusableDatabaseError
from storage.samples import SampleStore


class Storage:
    """Conversations and samples in the database at `url` (any SQLAlchemy async URL).

    A database file has one owner at a time, held by a lock file beside it: an app takes answers that it finds unfinished
    at its start for interrupted ones, so a second app would end the first one's.
    """

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.conversations = ConversationStore(self.database)
        self.samples = SampleStore(self.database)
        file = self.database.file
        self._lock = None if file is None else FileLock(f"{file}.lock", thread_local=False)

    async def open(self) -> None:
        """Open or create the database and bring its schema up to date. Raises StorageError, and then holds nothing."""
        await asyncio.to_thread(self._acquire)
        try:
            await self.database.open()
        except BaseException:
            self._release()
            raise

    async def close(self) -> None:
        """Let running transactions end and close every connection. Idempotent."""
        try:
            await self.database.close()
        finally:
            self._release()

    def _acquire(self) -> None:
        if self._lock is None:
            return
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            if not Path(self._lock.lock_file).exists():
                message = f"cannot open the database {self.database.file}: no lock file can be made beside it"
                raise UnusableDatabaseError(message) from None
            raise UnusableDatabaseError(
                f"another app uses the database {self.database.file}; end it first, or choose another --data-dir"
            ) from None
        except OSError as error:
            raise StorageError(f"cannot open the database {self.database.file}: {error}") from error

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
