"""/api/messages: what can be asked about one message."""

from fastapi import APIRouter, Request

from api.context import context_of

router = APIRouter(prefix="/api/messages")


@router.get("/{message_id}/tokens")
async def show_tokens(message_id: str, request: Request) -> dict[str, list[int]]:
    """Where an answer can be cut: for each token, how many characters of `content` are there with it."""
    tokens = await context_of(request).chat.tokens(message_id)
    return {"ends": tokens.whole_ends()}
