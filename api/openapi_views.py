"""What the page's routes answer with, as JSON schemas for /openapi.json: made from the room `chat`'s own types, closed."""

from typing import Any

from pydantic import TypeAdapter

from api.openapi_fields import TEMPLATE
from api.openapi_operation import Schema
from chat.comparing import Choice, Parting
from chat.events import (
    BranchChange,
    ConversationItem,
    ConversationList,
    ConversationTree,
    FoundList,
    Outline,
    Residency,
)

VIEWS = (
    BranchChange,
    Choice,
    ConversationItem,
    ConversationList,
    ConversationTree,
    FoundList,
    Outline,
    Parting,
    Residency,
)


def view_components() -> Schema:
    """The schemas by name. All fields of these types are always there, and no others."""
    inputs: Any = [(kind, "serialization", TypeAdapter(kind)) for kind in VIEWS]
    _, found = TypeAdapter.json_schemas(inputs, ref_template=TEMPLATE)
    return {name: _close(schema) for name, schema in found["$defs"].items()}


def view(kind: type) -> Schema:
    """A reference to one of them."""
    assert kind in VIEWS, "the document has its schema"
    return {"$ref": TEMPLATE.format(model=kind.__name__)}


def closed_object(**properties: Schema) -> Schema:
    """An object of exactly these fields."""
    return _close({"type": "object", "properties": properties})


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _close(schema: Schema) -> Schema:
    return schema | {"required": list(schema["properties"]), "additionalProperties": False}
