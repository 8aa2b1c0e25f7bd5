"""The table of docs/api.md: what each route does with each field, read from the code.

`python -m tests.api.field_table` prints it.
"""

import json
import sys
from collections.abc import Mapping
from typing import NamedTuple

from api.openai_schema import (
    EMBEDDING_UNSUPPORTED_FIELDS,
    IGNORED_FIELDS,
    UNSUPPORTED_FIELDS,
    ChatBody,
    CompletionBody,
    EmbeddingBody,
)
from api.responses_schema import RENAMED_FIELDS, ResponsesBody
from api.responses_schema import UNSUPPORTED_FIELDS as RESPONSES_UNSUPPORTED_FIELDS
from engine.sampling_params import SAMPLING_FIELDS
from engine.sampling_params import UNSUPPORTED_FIELDS as UNSUPPORTED_SAMPLING

Neutral = Mapping[str, tuple[object, ...]]


class Route(NamedTuple):
    """What a route takes, and what it refuses unless the value changes nothing."""

    taken: frozenset[str]
    unsupported: Neutral

    def cell(self, field: str) -> str:
        """yes, ignored, no (or which value passes), or nothing for a field that it does not know."""
        if field in self.unsupported:
            passing = ", ".join(f"`{json.dumps(value)}`" for value in self.unsupported[field])
            return f"only {passing}" if passing else "no"
        if field in self.taken:
            return "yes"
        return "ignored" if field in IGNORED_FIELDS else ""


def routes() -> dict[str, Route]:
    """The routes by name."""
    sampling = SAMPLING_FIELDS - UNSUPPORTED_SAMPLING.keys()
    generation = {**UNSUPPORTED_SAMPLING, **UNSUPPORTED_FIELDS}
    responses = sampling - RENAMED_FIELDS - RESPONSES_UNSUPPORTED_FIELDS.keys()
    return {
        "chat": Route(frozenset(ChatBody.model_fields) | sampling, generation),
        "completions": Route(frozenset(CompletionBody.model_fields) | sampling, generation),
        "responses": Route(
            frozenset(ResponsesBody.model_fields) | responses,
            {**UNSUPPORTED_SAMPLING, **RESPONSES_UNSUPPORTED_FIELDS},
        ),
        "embeddings": Route(frozenset(EmbeddingBody.model_fields), EMBEDDING_UNSUPPORTED_FIELDS),
    }


def table() -> str:
    """The table in Markdown."""
    found = routes()
    names = {name for route in found.values() for name in (*route.taken, *route.unsupported)}
    rows = ["| field | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for name in sorted(names | IGNORED_FIELDS):
        rows.append(f"| `{name}` | {' | '.join(route.cell(name) for route in found.values())} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
