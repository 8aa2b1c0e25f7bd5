"""`Storage`: the whole room behind one object."""

from storage.conversations import ConversationStore
from storage.database import Database
from storage.samples import SampleStore


class Storage:
    """Conversations and samples in the database at `url` (any SQLAlchemy async URL)."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.conversations = ConversationStore(self.database)
        self.samples = SampleStore(self.database)

    async def open(self) -> None:
        """Open or create the database and bring its schema up to date. Raises StorageError."""
        await self.database.open()

    async def close(self) -> None:
        """Let running transactions end and close every connection. Idempotent."""
        await self.database.close()
