"""/openapi.json: every HTTP route, what it takes and what it answers, made from the models and tables that the routes use.

The tests hold it to the code: the routes that are there, what fields take, and what is answered to anything that a client
may send.
"""

from functools import cache
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel
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
from api.openapi_fields import SAMPLING, TEMPLATE, body_schema, prompts
from api.openapi_messages import MESSAGES, RESPONSES_INPUT, RESPONSES_TEXT
from api.openapi_operation import (
    ALWAYS,
    ANY_TEXT,
    EVENTS,
    GENERATING,
    JSON,
    MODEL,
    READING,
    Operation,
    Operations,
    Schema,
)
from api.openapi_pages import page_operations
from api.openapi_views import view_components
from api.operations import VERSION
from api.responses_schema import RENAMED_FIELDS, ResponsesBody
from api.responses_schema import UNSUPPORTED_FIELDS as RESPONSES_UNSUPPORTED_FIELDS
from engine.sampling_params import MAX_LOGPROBS
from engine.sampling_params import UNSUPPORTED_FIELDS as UNSUPPORTED_SAMPLING

router = APIRouter()

TOOL_CHOICE: Schema = {"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]}


@router.get("/openapi.json")
async def show_document() -> JSONResponse:
    """What this server takes and answers."""
    return JSONResponse(document())


@cache
def document() -> dict[str, Any]:
    """The whole of it."""
    paths: dict[str, dict[str, Any]] = {}
    components = _components() | view_components()
    for (method, path), operation in (page_operations() | _openai_operations()).items():
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
    return found["$defs"]


def _openai_operations() -> Operations:
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
