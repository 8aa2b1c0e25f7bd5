"""What the routes about the engine answer with, as closed JSON schemas for /openapi.json, made from the rooms' own types."""

from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter

from api.engine_room import HISTORY_FIELDS
from api.openapi_fields import TEMPLATE
from api.openapi_operation import ANY_TEXT, Schema
from api.openapi_views import close, closed_object, list_of, view
from chat.history import Change
from chat.owners import Owner
from chat.turns import DEFAULT_SAMPLING
from engine.gpu_load import GpuLoad
from engine.stats import (
    BlockCounts,
    BlockDetail,
    BlockHolder,
    BlockInfo,
    CounterfactualBytes,
    Counters,
    InternalFragmentation,
    ModelInfo,
    RequestInfo,
)
from engine.timeline import RequestEvent

WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
_NULL: Schema = {"type": "null"}


def defaults() -> Schema:
    """Of /api/defaults."""
    sampling = closed_object(**dict.fromkeys(DEFAULT_SAMPLING, NUMBER))
    return closed_object(system_prompt=_or_null(ANY_TEXT), sampling=sampling)


def stats() -> Schema:
    """Of /api/stats."""
    waiting = ("running", "waiting", "waiting_capacity", "waiting_budget", "waiting_deferred")
    return closed_object(
        time=NUMBER,
        num_steps=WHOLE,
        blocks=view(BlockCounts),
        tokens=closed_object(capacity=WHOLE, stored=WHOLE),
        requests=closed_object(**dict.fromkeys(waiting, WHOLE)),
        counters=view(Counters),
        last_minute=_or_null(view(Change)),
        counterfactual_bytes=view(CounterfactualBytes),
        counterfactual_bytes_ended=view(CounterfactualBytes),
        internal_fragmentation=view(InternalFragmentation),
        blocks_saved=WHOLE,
        model=view(ModelInfo),
        machine=_machine(),
    )


def blocks() -> Schema:
    """Of /api/blocks."""
    return closed_object(blocks=list_of(view(BlockInfo)))


def block() -> Schema:
    """Of /api/blocks/{block_id}."""
    holder = _extended(BlockHolder, _owner())
    return _extended(BlockDetail, {"holders": list_of(holder)})


def requests() -> Schema:
    """Of /api/requests."""
    saved = closed_object(by_forks=WHOLE, by_prefix_cache=WHOLE)
    items = list_of(_request())
    return closed_object(requests=items, recent=items, blocks_saved=saved)


def request() -> Schema:
    """Of /api/requests/{request_id}."""
    return _request(events=list_of(view(RequestEvent)))


def history() -> Schema:
    """Of /api/history: a row has a value for each field, in their order."""
    row: Schema = {
        "type": "array",
        "items": {"type": ["number", "boolean", "null"]},
        "minItems": len(HISTORY_FIELDS),
        "maxItems": len(HISTORY_FIELDS),
    }
    names: Schema = {"const": HISTORY_FIELDS}
    return closed_object(
        start=WHOLE, since=WHOLE, end=WHOLE, step=WHOLE, fields=names, rows=list_of(row)
    )


def _machine() -> Schema:
    process = closed_object(
        memory_bytes=WHOLE, cpu_cores_in_use=NUMBER, num_threads=WHOLE, uptime_s=NUMBER
    )
    return closed_object(
        process=process,
        num_cpus=WHOLE,
        cpu_load=NUMBER,
        memory_total_bytes=WHOLE,
        memory_available_bytes=WHOLE,
        gpu=_or_null(view(GpuLoad)),
    )


def _request(**others: Schema) -> Schema:
    return _extended(RequestInfo, {"owner_number": WHOLE, **_owner(), **others})


def _owner() -> Schema:
    return {field.name: _or_null(ANY_TEXT) for field in fields(Owner)}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NULL]}


def _extended(kind: type, others: Schema) -> Schema:
    """The fields of a type, and others; they win."""
    return close({"type": "object", "properties": _properties(kind) | others})


def _properties(kind: type) -> dict[str, Any]:
    schema = TypeAdapter(kind).json_schema(mode="serialization", ref_template=TEMPLATE)
    return {name: dict(entry) for name, entry in schema["properties"].items()}
