"""/api/conversations: the list, search, one conversation's tree, and changes to it. Files are in api/transfers.py."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from api.bodies import read_json
from api.context import context_of
from api.json_answer import JsonAnswer
from api.numbers import WholeNumber
from api.queries import refuse_repeats
from chat.conversations import PAGE_SIZE, Conversations
from chat.json_parts import written_list
from chat.wire import to_wire
from engine.errors import RequestError


def conversations_of(request: Request) -> Conversations:
    return context_of(request).chat.conversations


Store = Annotated[Conversations, Depends(conversations_of)]
router = APIRouter(prefix="/api/conversations", dependencies=[Depends(refuse_repeats)])


@router.get("")
async def list_conversations(
    store: Store,
    query: str = "",
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: WholeNumber = PAGE_SIZE,
) -> dict[str, Any]:
    """A page of the list; with a `query` of those that have its words, and where."""
    if query.replace("\0", " ").strip():
        return to_wire(await store.find(query, after, limit))
    return to_wire(await store.list(after, limit))


@router.get("/{conversation_id}")
async def show_tree(store: Store, conversation_id: str) -> JsonAnswer:
    """`{conversation, messages}`: all messages, oldest first."""
    tree = await store.tree(conversation_id)
    messages = await written_list(map(to_wire, tree.messages))
    return JsonAnswer({"conversation": to_wire(tree.conversation), "messages": messages})


@router.get("/{conversation_id}/outline")
async def show_outline(store: Store, conversation_id: str) -> JsonAnswer:
    """The whole tree with the beginnings of its messages."""
    outline = await store.outline(conversation_id)
    nodes = await written_list(map(to_wire, outline.nodes))
    return JsonAnswer(to_wire(replace(outline, nodes=())) | {"nodes": nodes})


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


@router.post("/{conversation_id}/duplicate")
async def duplicate(store: Store, conversation_id: str) -> JSONResponse:
    """A copy of its own."""
    return JSONResponse(to_wire(await store.duplicate(conversation_id)), 201)
