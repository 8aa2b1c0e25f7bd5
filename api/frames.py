"""The frames of /ws/chat, both ways: what a client may send, and how server frames are called.

docs/protocol.md describes them; tests/api/test_frames.py keeps the two equal.
"""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from api.errors import NOT_STORED, shorten, validation_refusal
from chat import events
from chat.errors import ChatError
from engine.errors import EngineError, EngineNotReadyError, OverloadedError, RequestError
from storage.errors import StorageError

PROTOCOL_VERSION = 1

RequestId = str | int | float | None
Topic = Literal["conversations", "conversation", "stats", "requests", "blocks"]

EVENT_TYPES: dict[type, str] = {
    events.Started: "started",
    events.Progress: "progress",
    events.Delta: "delta",
    events.Candidate: "candidate",
    events.Finished: "finished",
    events.Snapshot: "snapshot",
    events.Selected: "selected",
    events.ConversationList: "conversations",
    events.ConversationChanged: "conversation_changed",
    events.ConversationRemoved: "conversation_removed",
    events.ConversationView: "conversation",
}
OWN_TYPES = frozenset(
    {"loading", "ready", "render", "unsubscribed", "stats", "requests", "pong", "error"}
)


class ClientFrame(BaseModel):
    """What every frame of a client may carry."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    request_id: RequestId = None


class Send(ClientFrame):
    type: Literal["send"]
    conversation_id: str | None = None
    parent_id: str | None = None
    content: str
    n: int | None = None
    sampling: dict[str, Any] | None = None
    system_prompt: str | None = None


class Regenerate(ClientFrame):
    type: Literal["regenerate"]
    message_id: str
    n: int | None = None
    sampling: dict[str, Any] | None = None


class Continue(ClientFrame):
    type: Literal["continue"]
    message_id: str
    at_token: int | None = Field(None, ge=0)
    n: int | None = None
    sampling: dict[str, Any] | None = None


class Edit(ClientFrame):
    type: Literal["edit"]
    message_id: str
    content: str
    n: int | None = None
    sampling: dict[str, Any] | None = None


class Select(ClientFrame):
    type: Literal["select"]
    message_id: str


class Stop(ClientFrame):
    type: Literal["stop"]
    generation_id: str
    index: int | None = Field(None, ge=0)


class Attach(ClientFrame):
    type: Literal["attach"]
    generation_id: str
    from_seq: int = Field(0, ge=0)


class Subscribe(ClientFrame):
    type: Literal["subscribe"]
    topic: Topic
    id: str | None = None


class Unsubscribe(ClientFrame):
    type: Literal["unsubscribe"]
    topic: Topic
    id: str | None = None


class Ping(ClientFrame):
    type: Literal["ping"]


AnyFrame = (
    Send | Regenerate | Continue | Edit | Select | Stop | Attach | Subscribe | Unsubscribe | Ping
)
CLIENT_TYPES = {
    frame.model_fields["type"].annotation.__args__[0]: frame for frame in AnyFrame.__args__
}
_ADAPTER: TypeAdapter[AnyFrame] = TypeAdapter(Annotated[AnyFrame, Field(discriminator="type")])


@dataclass(frozen=True)
class BadFrame:
    """A frame that was not understood, and the `request_id` it carried if that could be read."""

    error: RequestError
    request_id: RequestId


def parse_frame(text: str) -> AnyFrame | BadFrame:
    """The frame in `text`, or what is wrong with it."""
    try:
        raw = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        return BadFrame(_invalid(f"not JSON: {error}"), _salvaged_id(text))
    if not isinstance(raw, dict):
        return BadFrame(_invalid("a frame is a JSON object"), None)
    request_id = raw.get("request_id")
    if not _is_request_id(request_id):
        text = "request_id: a string or a number is required"
        return BadFrame(RequestError(text, param="request_id"), None)
    if raw.get("type") not in list(CLIENT_TYPES):
        allowed = ", ".join(CLIENT_TYPES)
        return BadFrame(_invalid(f"type must be one of {allowed}", "type"), request_id)
    try:
        return _ADAPTER.validate_python(raw)
    except ValidationError as error:
        return BadFrame(validation_refusal(error, skip=1), request_id)


def frame_text(kind: str, fields: dict[str, Any], request_id: RequestId = None) -> str:
    """A server frame as JSON text; `request_id` is left out when there is none."""
    echo = {} if request_id is None else {"request_id": request_id}
    return pydantic_core.to_json({"type": kind, **echo, **fields}).decode()


def error_fields(error: Exception) -> dict[str, Any]:
    """`code`, `message` and `param` of an error frame; an unforeseen exception stays vague."""
    match error:
        case RequestError() | ChatError():
            code, message, param = error.code, error.message, error.param
        case EngineNotReadyError():
            code, message, param = "loading", "the model is still loading", None
        case OverloadedError():
            code, message, param = "overloaded", str(error), None
        case EngineError():
            code, message, param = "engine_dead", str(error), None
        case StorageError():
            code, message, param = "storage_failed", NOT_STORED, None
        case _:
            code, message, param = (
                "internal_error",
                "internal error; the server's log has more",
                None,
            )
    fields = {"code": code, "message": shorten(message)}
    return fields | ({"param": shorten(param)} if param else {})


def _salvaged_id(text: str) -> RequestId:
    """The `request_id` of a frame with half a surrogate pair, which browsers write and a stricter parser may read."""
    try:
        request_id = json.loads(text)["request_id"]
        json.dumps(request_id, ensure_ascii=False).encode()
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return request_id if _is_request_id(request_id) else None


def _is_request_id(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, str | int) and not isinstance(value, bool))


def _invalid(message: str, param: str | None = None) -> RequestError:
    return RequestError(message, param=param, code="invalid_frame")
