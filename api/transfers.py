"""Conversations as files: /api/conversations/export, /api/conversations/import, /api/conversations/{id}/export."""

import asyncio
import gc
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from api.conversations import Store
from api.large_json import parse_large_json, take_apart
from api.queries import refuse_repeats
from chat.portable import file_name
from chat.wire import to_wire
from engine.errors import RequestError

Format = Annotated[Literal["json", "markdown"], Query(alias="format")]
router = APIRouter(prefix="/api/conversations", dependencies=[Depends(refuse_repeats)])


@router.post("/import")
async def import_conversations(store: Store, request: Request, again: bool = False) -> JSONResponse:
    """New conversations from an export of ours, of ChatGPT or of Open WebUI; with `again` also of what is here already."""
    take_in = store.import_again if again else store.import_document
    with _without_collector():
        document = await asyncio.to_thread(_parse_file, await request.body())
        try:
            imported = await take_in(document)
        finally:
            # What has been stored is told also when there is no time left for this.
            with suppress(asyncio.CancelledError):
                await asyncio.to_thread(take_apart, document)
    return JSONResponse(to_wire(imported), 201)


@router.get("/export")
async def export_all(store: Store, kind: Format = "json") -> Response:
    """Every conversation: one JSON document, or a ZIP archive of Markdown files."""
    name = f"pageturn-{datetime.now(UTC):%Y-%m-%d}"
    if kind == "json":
        pieces = await store.export_all_json()
        return _named(StreamingResponse(pieces, media_type="application/json"), f"{name}.json")
    pieces = await store.export_all_markdown()
    return _named(StreamingResponse(pieces, media_type="application/zip"), f"{name}.zip")


@router.get("/{conversation_id}/export")
async def export(store: Store, conversation_id: str, kind: Format = "json") -> Response:
    """One conversation: the whole tree as JSON, or what is on show as Markdown."""
    name = file_name((await store.item(conversation_id)).title)
    if kind == "json":
        pieces = await store.export_json(conversation_id)
        return _named(StreamingResponse(pieces, media_type="application/json"), f"{name}.json")
    text = await store.export_markdown(conversation_id)
    return _named(PlainTextResponse(text, media_type="text/markdown"), f"{name}.md")


def _parse_file(body: bytes) -> object:
    if not body.removeprefix(BOM_UTF8).strip():
        raise RequestError("the file is empty", param=None, code="invalid_json")
    return parse_large_json(body)


@contextmanager
def _without_collector() -> Iterator[None]:
    """For work that makes objects by the million, none of them garbage: a collection looks at all of them, and everybody waits."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _named(response: Response, name: str) -> Response:
    """To be saved under a name; browsers that do not read the second form get the ending alone."""
    plain = name if name.isascii() else f"chat{name[name.rindex('.') :]}"
    value = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name)}"
    response.headers["Content-Disposition"] = value
    return response
