"""/openapi.json: every HTTP route, what it takes and what it answers, made from the models and tables that the routes use.

The tests hold it to the code: the routes that are there, what fields take, and what is answered to anything that a client
may send.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from api import openapi_answers as answers
from api.openai_schema import (
    EMBEDDING_UNSUPPORTED_FIELDS,
    MAX_INPUTS,
    MAX_PROMPTS,
    UNSUPPORTED_FIELDS,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    TokenizeBody,
)
from api.openapi_fields import SAMPLING, TEMPLATE, Schema, body_schema, prompts
from api.openapi_messages import MESSAGES, RESPONSES_INPUT, RESPONSES_TEXT
from api.operations import VERSION
from api.responses_schema import RENAMED_FIELDS, ResponsesBody
from api.responses_schema import UNSUPPORTED_FIELDS as RESPONSES_UNSUPPORTED_FIELDS
from chat.events import ConversationItem, ConversationTree
from engine.sampling_params import MAX_LOGPROBS
from engine.sampling_params import UNSUPPORTED_FIELDS as UNSUPPORTED_SAMPLING

router = APIRouter()

TOOL_CHOICE: Schema = {"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]}
ANY_TEXT: Schema = {"type": "string"}
ANY_OBJECT: Schema = {"type": "object"}
EVENTS = "text/event-stream"
JSON = "application/json"


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


ALWAYS = (400, 401, 404, 405)
READING = (413,)
MODEL = (503,)
GENERATING = (413, 429, 500, 503)
Paths = Mapping[tuple[str, str], Operation]


@router.get("/openapi.json")
async def show_document() -> JSONResponse:
    """What this server takes and answers."""
    return JSONResponse(document())


@cache
def document() -> dict[str, Any]:
    """The whole of it."""
    paths: dict[str, dict[str, Any]] = {}
    components = _components()
    for (method, path), operation in (_operations() | _openai_operations()).items():
        body = None if operation.body is None else dict(operation.body)
        components |= (body or {}).pop("$defs", {})
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation, body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pageturn", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(path: str, operation: Operation, body: Schema | None) -> dict[str, Any]:
    content = {kind: {"schema": _schema(answer)} for kind, answer in operation.answer.items()}
    success = {"description": "success"} | ({"content": content} if content else {})
    error = {"description": "error", "content": {JSON: {"schema": _schema(answers.Error)}}}
    refusals = {str(status): error for status in sorted({*ALWAYS, *operation.refusals})}
    document: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {str(operation.status): success} | refusals,
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in operation.query.items()
        ]
        + [
            {"name": part[1:-1], "in": "path", "required": True, "schema": ANY_TEXT}
            for part in path.split("/")
            if part.startswith("{")
        ],
    }
    if body is not None:
        document["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return document


def _schema(answer: type | Schema) -> Schema:
    if isinstance(answer, dict):
        return answer
    return {"$ref": TEMPLATE.format(model=answer.__name__)}


def _components() -> Schema:
    kinds = [
        kind
        for kind in vars(answers).values()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not BaseModel
    ]
    modes: Any = [(kind, "serialization") for kind in kinds]
    _, found = models_json_schema(modes, ref_template=TEMPLATE)
    components = found["$defs"]
    for kind in (ConversationItem, ConversationTree):
        schema = TypeAdapter(kind).json_schema(mode="serialization", ref_template=TEMPLATE)
        components |= schema.pop("$defs", {}) | {kind.__name__: schema}
    return components


def _operations() -> dict[tuple[str, str], Operation]:
    """For operators and for the page."""
    listed = {JSON: ConversationItem}
    health = Operation(summary="Ready or not", answer={JSON: answers.Health}, refusals=(503,))
    return {
        ("GET", "/health"): health,
        ("GET", "/ping"): Operation(summary="The process answers", answer={"text/plain": ANY_TEXT}),
        ("POST", "/ping"): Operation(summary="The same", answer={"text/plain": ANY_TEXT}),
        ("GET", "/version"): Operation(summary="The version", answer={JSON: answers.Version}),
        ("GET", "/metrics"): Operation(summary="Prometheus text", answer={"text/plain": ANY_TEXT}),
        ("GET", "/openapi.json"): Operation(summary="This document", answer={JSON: ANY_OBJECT}),
        ("GET", "/api/stats"): Operation(
            summary="The engine in numbers", answer={JSON: answers.Stats}, refusals=MODEL
        ),
        ("GET", "/api/blocks"): Operation(
            summary="The block map", answer={JSON: answers.Blocks}, refusals=MODEL
        ),
        ("GET", "/api/requests"): Operation(
            summary="Live requests", answer={JSON: answers.Requests}, refusals=MODEL
        ),
        ("GET", "/api/messages/{message_id}/tokens"): Operation(
            summary="Where an answer can be cut",
            answer={JSON: answers.TokenEnds},
            refusals=(409, *MODEL),
        ),
        ("GET", "/api/conversations"): Operation(
            summary="Conversations, newest first",
            answer={JSON: answers.Conversations},
            query={"query": ANY_TEXT},
        ),
        ("POST", "/api/conversations/import"): Operation(
            summary="A conversation from an export",
            answer=listed,
            status=201,
            refusals=READING,
            body=ANY_OBJECT,
        ),
        ("GET", "/api/conversations/{conversation_id}"): Operation(
            summary="A conversation's tree", answer={JSON: ConversationTree}
        ),
        ("PATCH", "/api/conversations/{conversation_id}"): Operation(
            summary="Change title, pinned, system_prompt, sampling",
            answer=listed,
            refusals=READING,
            body=ANY_OBJECT,
        ),
        ("DELETE", "/api/conversations/{conversation_id}"): Operation(
            summary="Hide a conversation, or remove it for good",
            answer={},
            status=204,
            query={"purge": {"type": "boolean"}},
        ),
        ("POST", "/api/conversations/{conversation_id}/restore"): Operation(
            summary="Show a hidden conversation again", answer=listed
        ),
        ("GET", "/api/conversations/{conversation_id}/export"): Operation(
            summary="A conversation as a file",
            answer={JSON: ANY_OBJECT, "text/markdown": ANY_TEXT},
            query={"format": {"enum": ["json", "markdown"]}},
        ),
    }


def _openai_operations() -> dict[tuple[str, str], Operation]:
    """For programs that talk to OpenAI or vLLM."""
    fields = SAMPLING.keys()
    unsupported = {**UNSUPPORTED_SAMPLING, **UNSUPPORTED_FIELDS}
    refused = {**UNSUPPORTED_SAMPLING, **RESPONSES_UNSUPPORTED_FIELDS}
    chat = body_schema(ChatBody, fields, unsupported, messages=MESSAGES, tool_choice=TOOL_CHOICE)
    top: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS}
    completions = body_schema(
        CompletionBody, fields, unsupported, prompt=prompts(MAX_PROMPTS), logprobs=top
    )
    responses = body_schema(
        ResponsesBody,
        fields - RENAMED_FIELDS,
        refused,
        input=RESPONSES_INPUT,
        text=RESPONSES_TEXT,
        max_output_tokens={"type": "integer", "minimum": 1},
        tool_choice=TOOL_CHOICE,
    )
    embeddings = body_schema(
        EmbeddingBody, (), EMBEDDING_UNSUPPORTED_FIELDS, input=prompts(MAX_INPUTS)
    )
    return {
        ("GET", "/v1/models"): Operation(
            summary="The one model", answer={JSON: answers.Models}, refusals=MODEL
        ),
        ("GET", "/v1/models/{name}"): Operation(
            summary="The model by name", answer={JSON: answers.Model}, refusals=MODEL
        ),
        ("POST", "/v1/chat/completions"): Operation(
            summary="Answer a conversation",
            answer={JSON: answers.ChatCompletion, EVENTS: ANY_TEXT},
            refusals=GENERATING,
            body=chat,
        ),
        ("POST", "/v1/completions"): Operation(
            summary="Continue a prompt or several",
            answer={JSON: answers.Completion, EVENTS: ANY_TEXT},
            refusals=GENERATING,
            body=completions,
        ),
        ("POST", "/v1/responses"): Operation(
            summary="One answer, whole or as events",
            answer={JSON: answers.Response, EVENTS: ANY_TEXT},
            refusals=GENERATING,
            body=responses,
        ),
        ("POST", "/v1/embeddings"): Operation(
            summary="Vectors of texts",
            answer={JSON: answers.Embeddings},
            refusals=GENERATING,
            body=embeddings,
        ),
        ("POST", "/tokenize"): Operation(
            summary="Token ids of a prompt or of messages",
            answer={JSON: answers.Tokens},
            refusals=(*READING, *MODEL),
            body=body_schema(TokenizeBody, (), {}, messages=MESSAGES),
        ),
        ("POST", "/detokenize"): Operation(
            summary="Text of token ids",
            answer={JSON: answers.Text},
            refusals=(*READING, *MODEL),
            body=body_schema(DetokenizeBody, (), {}),
        ),
    }
