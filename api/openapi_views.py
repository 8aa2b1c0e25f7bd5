"""What the page's and operators' routes answer with, as JSON schemas for /openapi.json: made from the rooms' own types, closed."""

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
    Imported,
    Outline,
    Residency,
)
from chat.history import Change
from engine.gpu_load import GpuLoad
from engine.stats import (
    BlockCounts,
    BlockInfo,
    CounterfactualBytes,
    Counters,
    InternalFragmentation,
    ModelInfo,
)
from engine.timeline import RequestEvent

VIEWS = (
    BlockCounts,
    BlockInfo,
    BranchChange,
    Change,
    Choice,
    ConversationItem,
    ConversationList,
    ConversationTree,
    CounterfactualBytes,
    Counters,
    FoundList,
    GpuLoad,
    Imported,
    InternalFragmentation,
    ModelInfo,
    Outline,
    Parting,
    RequestEvent,
    Residency,
)


def view_components() -> Schema:
    """The schemas by name. All fields of these types are always there, and no others."""
    inputs: Any = [(kind, "serialization", TypeAdapter(kind)) for kind in VIEWS]
    _, found = TypeAdapter.json_schemas(inputs, ref_template=TEMPLATE)
    return {name: close(schema) for name, schema in found["$defs"].items()}


def view(kind: type) -> Schema:
    """A reference to one of them."""
    assert kind in VIEWS, "the document has its schema"
    return {"$ref": TEMPLATE.format(model=kind.__name__)}


def closed_object(**properties: Schema) -> Schema:
    """An object of exactly these fields."""
    return close({"type": "object", "properties": properties})


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def close(schema: Schema) -> Schema:
    """The schema of an object in which all fields are always there, and no others; one of anything else as it is."""
    if "properties" not in schema:
        return schema
    return schema | {"required": list(schema["properties"]), "additionalProperties": False}
