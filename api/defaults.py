"""/api/defaults: what holds where a conversation says nothing."""

from typing import Any

from fastapi import APIRouter, Request

from api.context import context_of
from chat.turns import DEFAULT_SAMPLING

router = APIRouter()


@router.get("/api/defaults")
async def show_defaults(request: Request) -> dict[str, Any]:
    """The system prompt of the model's own template, null if it has none, and the sampling."""
    prompt = await context_of(request).chat.default_system_prompt()
    return {"system_prompt": prompt, "sampling": dict(DEFAULT_SAMPLING)}
