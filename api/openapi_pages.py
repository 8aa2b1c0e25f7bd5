"""Operators' and the page's routes, for /openapi.json. What their documents hold docs/http.md says."""

from typing import Any

from api import openapi_answers as answers
from api import openapi_engine as engine
from api.openapi_engine import NUMBER, WHOLE
from api.openapi_operation import (
    ANY_OBJECT,
    ANY_TEXT,
    JSON,
    MODEL,
    READING,
    Operation,
    Operations,
    Schema,
)
from api.openapi_views import closed_object, list_of, view
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

FORMAT: Schema = {"enum": ["json", "markdown"]}
HISTORY: dict[str, Schema] = {
    "window": {"enum": ["15m", "1d", "30d"]},
    "start": NUMBER,
    "end": NUMBER,
    "since": NUMBER,
    "format": {"enum": ["json", "csv"]},
}


def page_operations() -> Operations:
    """All of them."""
    return _operators() | _conversations() | _messages()


def _object(summary: str, answer: Schema = ANY_OBJECT, **fields: Any) -> Operation:
    return Operation(summary=summary, answer={JSON: answer}, **fields)


def _text(summary: str) -> Operation:
    return Operation(summary=summary, answer={"text/plain": ANY_TEXT})


def _operators() -> Operations:
    health = Operation(summary="Ready or not", answer={JSON: answers.Health}, refusals=MODEL)
    return {
        ("GET", "/health"): health,
        ("GET", "/ping"): _text("The process answers"),
        ("POST", "/ping"): _text("The same"),
        ("GET", "/version"): Operation(summary="The version", answer={JSON: answers.Version}),
        ("GET", "/metrics"): _text("Prometheus text"),
        ("GET", "/openapi.json"): _object("This document"),
        ("GET", "/api/stats"): _object("The engine in numbers", engine.stats(), refusals=MODEL),
        ("GET", "/api/blocks"): _object("The block map", engine.blocks(), refusals=MODEL),
        ("GET", "/api/blocks/{block_id}"): _object(
            "Who holds a block", engine.block(), refusals=MODEL
        ),
        ("GET", "/api/requests"): _object(
            "Live and recent requests", engine.requests(), refusals=MODEL
        ),
        ("GET", "/api/requests/{request_id}"): _object(
            "A request's life", engine.request(), refusals=MODEL
        ),
        ("POST", "/api/requests/{request_id}/stop"): Operation(
            summary="End a live request", answer={}, status=202, refusals=MODEL
        ),
        ("GET", "/api/history"): Operation(
            summary="The engine's past",
            answer={JSON: engine.history(), "text/csv": ANY_TEXT},
            query=HISTORY,
            refusals=MODEL,
        ),
        ("GET", "/api/defaults"): _object(
            "What a new chat begins with", engine.defaults(), refusals=MODEL
        ),
    }


def _conversations() -> Operations:
    root = "/api/conversations"
    one = f"{root}/{{conversation_id}}"
    paging: dict[str, Schema] = {"query": ANY_TEXT, "after": ANY_TEXT, "limit": WHOLE}
    listed: Schema = {"anyOf": [view(ConversationList), view(FoundList)]}
    item = view(ConversationItem)
    return {
        ("GET", root): _object("Conversations, newest first", listed, query=paging),
        ("POST", f"{root}/import"): _object(
            "Conversations from an export",
            view(Imported),
            status=201,
            query={"again": {"type": "boolean"}},
            body=ANY_OBJECT,
            refusals=READING,
        ),
        ("GET", f"{root}/export"): Operation(
            summary="All conversations as a file",
            answer={JSON: ANY_OBJECT, "application/zip": ANY_TEXT},
            query={"format": FORMAT},
        ),
        ("GET", one): _object("A conversation's tree", view(ConversationTree)),
        ("GET", f"{one}/outline"): _object("The shape of a conversation's tree", view(Outline)),
        ("PATCH", one): _object("Change a conversation", item, body=ANY_OBJECT, refusals=READING),
        ("DELETE", one): Operation(
            summary="Hide a conversation, or remove it for good",
            answer={},
            status=204,
            query={"purge": {"type": "boolean"}},
        ),
        ("POST", f"{one}/restore"): _object("Show a hidden conversation again", item),
        ("POST", f"{one}/duplicate"): _object("A copy of a conversation", item, status=201),
        ("GET", f"{one}/export"): Operation(
            summary="A conversation as a file",
            answer={JSON: ANY_OBJECT, "text/markdown": ANY_TEXT},
            query={"format": FORMAT},
        ),
    }


def _messages() -> Operations:
    one = "/api/messages/{message_id}"
    refusals = (409, *MODEL)
    return {
        ("DELETE", one): _object("Hide a branch", view(BranchChange), refusals=refusals),
        ("POST", f"{one}/restore"): _object(
            "Show a hidden branch again", view(BranchChange), refusals=refusals
        ),
        ("GET", f"{one}/tokens"): _object(
            "Where an answer can be cut", closed_object(ends=list_of(WHOLE)), refusals=refusals
        ),
        ("GET", f"{one}/residency"): _object(
            "What continuing would have to compute", view(Residency), refusals=refusals
        ),
        ("GET", f"{one}/partings"): _object(
            "Where candidates part",
            closed_object(answers=list_of(view(Parting))),
            refusals=refusals,
        ),
        ("GET", f"{one}/choices"): _object(
            "What the model thought at a token",
            closed_object(choices=list_of(view(Choice))),
            query={"at_token": WHOLE},
            refusals=refusals,
        ),
    }
