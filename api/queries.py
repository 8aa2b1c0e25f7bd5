"""Queries say each thing once: frameworks take the last of several values, which is not what all of their writers mean."""

from collections import Counter

from fastapi import Request

from engine.errors import RequestError


async def refuse_repeats(request: Request) -> None:
    """Raise RequestError for a parameter that comes twice. A dependency of routers."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in counts.items():
        if count > 1:
            raise RequestError(f"{name} comes {count} times; once is allowed", param=name)
