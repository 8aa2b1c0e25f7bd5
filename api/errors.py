"""What a client is told when a request fails: OpenAI's error object on every HTTP route.

`{"error": {"message", "type", "param", "code"}}`; `param` is the path of the field, as `messages[0].content`.
"""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from chat.errors import (
    ChatError,
    ConversationBusyError,
    NotFoundError,
    ShuttingDownError,
    UnknownGenerationError,
)
from engine.errors import EngineError, EngineNotReadyError, OverloadedError, RequestError
from storage.errors import StorageError

RETRY_AFTER_S = 2
LONGEST_TEXT = 500
NOT_STORED = (
    "the server cannot read or write its database (is the disk full?); its log has the details"
)
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_CHAT_STATUS: dict[type[ChatError], int] = {
    NotFoundError: 404,
    UnknownGenerationError: 404,
    ConversationBusyError: 409,
    ShuttingDownError: 503,
}


_WANTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a shorter number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "literal_error": "one of {expected}",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "string_too_long": "{max_length} characters or fewer",
}
_NAMES: dict[object, str] = {None: "null", True: "true", False: "false"}


class ApiError(Exception):
    """A refusal with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers


def shorten(text: str) -> str:
    """`text`, or its two ends: what a client sent is not repeated to it, or to the log, at any length."""
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else f"{text[:half]}…{text[-half:]}"


def error_object(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The JSON document of an error."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    fields = {"message": shorten(message), "type": kind, "param": param and shorten(param)}
    return {"error": fields | {"code": code}}


def as_api_error(error: Exception) -> ApiError:
    """Any exception as what its client may know; an unforeseen one stays vague."""
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError(400, error.message, param=error.param, code=error.code)
        case EngineNotReadyError():
            return ApiError(503, "the model is still loading; try again", code="loading")
        case OverloadedError():
            return ApiError(429, str(error), code="overloaded")
        case EngineError():
            return ApiError(503, f"the engine has stopped: {error}", code="engine_dead")
        case ChatError():
            status = _CHAT_STATUS.get(type(error), 500)
            return ApiError(status, error.message, param=error.param, code=error.code)
        case StorageError():
            return ApiError(500, NOT_STORED, code="storage_failed")
        case HTTPException():
            return ApiError(error.status_code, error.detail, headers=error.headers)
    return ApiError(500, "internal error; the server's log has the details", code="internal_error")


def error_response(error: Exception) -> JSONResponse:
    """The response for an exception; 429 and 503 carry Retry-After."""
    known = as_api_error(error)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if known.status in (429, 503) else {}
    headers |= known.headers or {}
    document = error_object(known.status, known.message, known.param, known.code)
    return JSONResponse(document, known.status, headers)


def field_path(location: Sequence[str | int]) -> str:
    """`messages[0].content` for ("messages", 0, "content")."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def validation_refusal(error: ValidationError, *, skip: int = 0) -> RequestError:
    """The first fault that pydantic found, as a RequestError; `skip` parts of its location are not the client's."""
    first = error.errors(include_url=False)[0]
    path = field_path(first["loc"][skip:])
    code = "unknown_field" if first["type"] == "extra_forbidden" else "invalid_value"
    text = "unknown field; leave it out" if code == "unknown_field" else _describe(first)
    return RequestError(f"{path}: {text}" if path else text, param=path or None, code=code)


def _describe(fault: Any) -> str:
    """What is wrong and what is wanted, in this API's words where pydantic's are about Python."""
    kind, given = fault["type"], fault["input"]
    if kind == "missing":
        return "this field is required"
    if kind == "too_long":
        return f"{fault['ctx']['actual_length']} entries are too many; {fault['ctx']['max_length']} are the most"
    if kind in _WANTED:
        wanted = _WANTED[kind].format_map(fault.get("ctx", {}))
        return f"{_show(given)} is not allowed; {wanted} is required"
    if isinstance(given, (dict, list)) or len(repr(given)) > 60:
        return fault["msg"]
    return f"{fault['msg']}, not {_show(given)}"


def _show(value: object) -> str:
    """A JSON value, cut short."""
    is_named = value is None or isinstance(value, bool)
    return _NAMES[value] if is_named else reprlib.repr(value)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of every route an error object."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            fault = error.errors()[0]
            path = field_path(fault["loc"][1:])
            error = RequestError(f"{path}: {_describe(fault)}", param=path)
        return error_response(error)

    kinds = (ApiError, EngineError, ChatError, HTTPException, RequestValidationError, Exception)
    for kind in kinds:
        app.add_exception_handler(kind, handle)
