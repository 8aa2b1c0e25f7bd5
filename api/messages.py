"""/api/messages: what can be asked about one message, and deleting what follows from it."""

from typing import Any

from fastapi import APIRouter, Depends, Request

from api.context import context_of
from api.engine_calls import unless_disconnected
from api.numbers import WholeNumber
from api.queries import refuse_repeats
from chat.wire import to_wire

router = APIRouter(prefix="/api/messages", dependencies=[Depends(refuse_repeats)])


@router.get("/{message_id}/tokens")
async def show_tokens(message_id: str, request: Request) -> dict[str, list[int]]:
    """Where an answer can be cut: for each token, how many characters of `content` are there with it."""
    tokens = await context_of(request).chat.answers.tokens(message_id)
    return {"ends": tokens.whole_ends()}


@router.get("/{message_id}/residency")
async def show_residency(message_id: str, request: Request) -> dict[str, Any]:
    """What going on from here finds in the KV pool, and what it would have to compute."""
    return to_wire(await context_of(request).chat.residency(message_id))


@router.delete("/{message_id}")
async def delete_branch(message_id: str, request: Request) -> dict[str, Any]:
    """Hide a message and all that follows from it."""
    return to_wire(await context_of(request).chat.conversations.hide_branch(message_id))


@router.post("/{message_id}/restore")
async def restore_branch(message_id: str, request: Request) -> dict[str, Any]:
    """Show again what was hidden with a message."""
    return to_wire(await context_of(request).chat.conversations.restore_branch(message_id))


@router.get("/{message_id}/partings")
async def show_partings(message_id: str, request: Request) -> dict[str, Any]:
    """Where the answers of one generation part, by tokens."""
    return {"answers": to_wire(await context_of(request).chat.answers.partings(message_id))}


@router.get("/{message_id}/choices")
async def show_choices(message_id: str, request: Request, at_token: WholeNumber) -> dict[str, Any]:
    """The likeliest tokens at a place of an answer, and the one that stands there, with their probabilities.

    That is work for the engine, which ends when the client goes away.
    """
    answers = context_of(request).chat.answers
    choices = await unless_disconnected(
        request.receive, lambda: answers.choices(message_id, at_token)
    )
    return {"choices": to_wire(choices)}
