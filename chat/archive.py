"""Conversations as Markdown files in one ZIP archive, made piece by piece while it is being read."""

import asyncio
import io
import zipfile
from collections.abc import AsyncIterable, AsyncIterator

from chat.events import ConversationView
from chat.portable import export_markdown, file_name


class _Pieces(io.RawIOBase):
    """A file that can only be written; keeps what has not been taken."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._written.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        taken = b"".join(self._written)
        self._written.clear()
        return taken


async def export_archive(views: AsyncIterable[ConversationView]) -> AsyncIterator[bytes]:
    """One file a conversation, named by its title; equal names are numbered."""
    pieces = _Pieces()
    used: dict[str, int] = {}
    with zipfile.ZipFile(pieces, "w", zipfile.ZIP_DEFLATED) as archive:
        async for view in views:
            name = file_name(view.conversation.title)
            used[name] = count = used.get(name, 0) + 1
            suffix = f"_{count}" if count > 1 else ""
            await asyncio.to_thread(_add, archive, f"{name}{suffix}.md", view)
            yield pieces.take()
    yield pieces.take()


def _add(archive: zipfile.ZipFile, name: str, view: ConversationView) -> None:
    archive.writestr(name, export_markdown(view))
