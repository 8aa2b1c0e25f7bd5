"""How one method of one path is described for /openapi.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]

ANY_TEXT: Schema = {"type": "string"}
ANY_OBJECT: Schema = {"type": "object"}
JSON, EVENTS = "application/json", "text/event-stream"
ALWAYS = (400, 401, 404, 405)
READING = (413,)
MODEL = (503,)
GENERATING = (413, 429, 500, 503)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A method of a path. `answer` by media type: a type of the answers, or a schema.

    `status` is that of success, `refusals` are those of the error object beside ALWAYS.
    """

    summary: str
    answer: Mapping[str, type | Schema]
    status: int = 200
    refusals: tuple[int, ...] = ()
    body: Schema | None = None
    query: Mapping[str, Schema] = field(default_factory=dict)


Operations = dict[tuple[str, str], Operation]
