"""/api/stats, /api/blocks, /api/requests, /api/history: what the dashboard shows, for programs."""

import csv
import io
from dataclasses import fields
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from api.context import ApiContext, context_of
from api.documents import Documents, history_rows
from api.errors import ApiError
from api.json_answer import JsonAnswer
from api.numbers import WholeNumber
from api.queries import refuse_repeats
from chat.history import Change, HistoryPoint
from chat.json_parts import written_list
from engine.errors import RequestError
from storage.samples import DAY, MONTH

WINDOWS = {"15m": 900, "1d": DAY, "30d": MONTH}
HISTORY_FIELDS = [
    *(field.name for field in fields(HistoryPoint) if field.name != "change"),
    *(field.name for field in fields(Change)),
]


def _documents(request: Request) -> Documents:
    return context_of(request).documents


Context = Annotated[ApiContext, Depends(context_of)]
Shown = Annotated[Documents, Depends(_documents)]
Seconds = Annotated[WholeNumber | None, Query(ge=0, lt=2**40)]
router = APIRouter(prefix="/api", dependencies=[Depends(refuse_repeats)])


@router.get("/stats")
async def stats(documents: Shown) -> dict[str, Any]:
    return documents.stats()


@router.get("/blocks")
async def blocks(documents: Shown) -> JsonAnswer:
    """The block map as of between two steps."""
    return JsonAnswer({"blocks": await written_list(await documents.engine.block_map())})


@router.get("/blocks/{block_id}")
async def block(documents: Shown, block_id: WholeNumber) -> dict[str, Any]:
    """One block, and who holds it as which of their blocks."""
    detail = await documents.engine.block(block_id)
    if detail is None:
        last = documents.engine.stats.blocks.total - 1
        message = f"block_id is {block_id}; there are blocks 0 to {last}"
        raise ApiError(404, message, param="block_id", code="not_found")
    return documents.block(detail)


@router.get("/requests")
async def requests(documents: Shown) -> dict[str, Any]:
    """Live requests in order of arrival, and the last that have ended."""
    shown = documents.requests(await documents.engine.requests_report())
    return {"requests": shown.pop("items"), **shown}


@router.get("/requests/{request_id}")
async def request_timeline(documents: Shown, request_id: WholeNumber) -> dict[str, Any]:
    """One request with what happened to it."""
    detail = await documents.engine.request(request_id)
    if detail is None:
        raise _unknown_request(request_id)
    return documents.request(detail)


@router.post("/requests/{request_id}/stop", status_code=202)
async def stop_request(documents: Shown, request_id: WholeNumber) -> Response:
    """End a live request; one of a conversation as its own Stop does. Too late is not an error."""
    if await documents.engine.request(request_id) is None:
        raise _unknown_request(request_id)
    owner = documents.chat.owners.find(request_id)
    if owner is None or owner.generation_id is None:
        documents.engine.abort(request_id)
    else:
        documents.chat.stop(owner.generation_id)
    return Response(status_code=202)


@router.get("/history")
async def history(
    context: Context,
    window: Literal["15m", "1d", "30d"] | None = None,
    start: Seconds = None,
    end: Seconds = None,
    since: Seconds = None,
    format: Literal["json", "csv"] = "json",
) -> Response:
    """The engine's past: of the last 15 minutes, day or 30 days what is new `since` a point, or from `start` to `end`."""
    if (start is None) is not (end is None) or (start is not None and start >= (end or 0)):
        message = f"start is {start}, end is {end}; give both, start before end, or none"
        raise RequestError(message, param="start")
    if start is not None and window is not None:
        message = f"window is {window}; give it, or start and end"
        raise RequestError(message, param="window")
    if start is not None and since is not None:
        raise RequestError(f"since is {since}; only a window has one", param="since")
    reader = context.chat.history
    if start is None or end is None:
        shown = await reader.last(WINDOWS[window or "15m"], since or 0)
    else:
        shown = await reader.between(start, end)
    rows = history_rows(shown)
    if format == "csv":
        return _csv(rows)
    table = [[row[name] for name in HISTORY_FIELDS] for row in rows]
    span = {"start": shown.start, "since": shown.since, "end": shown.end, "step": shown.step}
    return JSONResponse(span | {"fields": HISTORY_FIELDS, "rows": table})


def _csv(rows: list[dict[str, Any]]) -> Response:
    text = io.StringIO()
    writer = csv.DictWriter(text, HISTORY_FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    headers = {"Content-Disposition": 'attachment; filename="pageturn-history.csv"'}
    return Response(text.getvalue(), media_type="text/csv", headers=headers)


def _unknown_request(request_id: int) -> ApiError:
    message = f"request_id is {request_id}: no such request lives, or it ended too long ago"
    return ApiError(404, message, param="request_id", code="not_found")
