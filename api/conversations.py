"""/api/conversations: the list, one conversation's tree, changes to it, export and import."""

from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from api.bodies import read_json
from api.context import context_of
from chat.conversations import Conversations
from chat.wire import to_wire
from engine.errors import RequestError


def _conversations(request: Request) -> Conversations:
    return context_of(request).chat.conversations


Store = Annotated[Conversations, Depends(_conversations)]
router = APIRouter(prefix="/api/conversations")


@router.get("")
async def list_conversations(store: Store, query: str = "") -> dict[str, Any]:
    """Newest first; `query` looks in titles."""
    return {"items": to_wire(await store.list(query))}


@router.post("/import")
async def import_conversation(store: Store, request: Request) -> JSONResponse:
    """A new conversation from what `export?format=json` gave."""
    item = await store.import_json(await read_json(request))
    return JSONResponse(to_wire(item), 201)


@router.get("/{conversation_id}")
async def show_tree(store: Store, conversation_id: str) -> dict[str, Any]:
    """`{conversation, messages}`: all messages, oldest first."""
    return to_wire(await store.tree(conversation_id))


@router.patch("/{conversation_id}")
async def update(store: Store, conversation_id: str, request: Request) -> dict[str, Any]:
    """Change any of title, pinned, system_prompt, sampling."""
    changes = await read_json(request)
    if not isinstance(changes, dict):
        raise RequestError("the body must be a JSON object", param=None, code="invalid_json")
    return to_wire(await store.update(conversation_id, changes))


@router.delete("/{conversation_id}", status_code=204)
async def delete(store: Store, conversation_id: str, purge: bool = False) -> Response:
    """Hide a conversation; with `purge=true` remove its rows for good."""
    await (store.purge(conversation_id) if purge else store.hide(conversation_id))
    return Response(status_code=204)


@router.post("/{conversation_id}/restore")
async def restore(store: Store, conversation_id: str) -> dict[str, Any]:
    """Show a hidden conversation again."""
    return to_wire(await store.restore(conversation_id))


@router.get("/{conversation_id}/export")
async def export(
    store: Store,
    conversation_id: str,
    kind: Annotated[Literal["json", "markdown"], Query(alias="format")] = "json",
) -> Response:
    """The conversation as a file."""
    if kind == "json":
        response: Response = JSONResponse(await store.export_json(conversation_id))
    else:
        text = await store.export_markdown(conversation_id)
        response = PlainTextResponse(text, media_type="text/markdown")
    name = f"conversation-{quote(conversation_id)}.{'json' if kind == 'json' else 'md'}"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
