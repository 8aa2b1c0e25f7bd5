"""/openapi.json says what the code does: the routes, what fields take, and what is answered to anything at all."""

import asyncio
from typing import Any

import jsonschema
import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.openapi import document
from api.openapi_fields import SAMPLING
from engine.errors import RequestError
from engine.sampling_params import SAMPLING_FIELDS, UNSUPPORTED_FIELDS, SamplingParams
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine

EXAMPLES = 15
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
NEED_MORE_THAN_IDS = {
    "DELETE /api/conversations/{conversation_id}",
    "DELETE /api/messages/{message_id}",
    "POST /api/messages/{message_id}/restore",
    "POST /api/conversations/import",
    "GET /api/requests/{request_id}",
    "POST /api/requests/{request_id}/stop",
}
NUMBERS = [-(2**63) - 1, -(2**63), -101, -100, -11, -10, -3, -2, -1, -0.5, 0, 0.005, 0.01, 0.5]
NUMBERS += [1, 2, 2.5, 3, 10, 11, 20, 21, 100, 101, 1.5, 10**9, 2**64 - 1, 2**64]
TEXTS: list[Any] = ["", "a", "never", "a" * 256, "a" * 257, "a" * 4096, "a" * 4097]
LISTS: list[Any] = [[], ["a"], [""], [1], [-1], [1.5], [True], [None], ["a"] * 16, ["a"] * 17]
LISTS += [["a"] * 1024, ["a"] * 1025, [7] * 1024, [7] * 1025, ["a" * 4097]]
OBJECTS: list[Any] = [{}, {"5": 1}, {"05": 1}, {"x": 1}, {"5": 101}, {"5": "1"}, {"type": "object"}]
OBJECTS += [{"regex": "a"}, {str(i): 1 for i in range(1025)}]
PROBES: list[Any] = [None, True, False, *NUMBERS, *TEXTS, *LISTS, *OBJECTS]
COMPANIONS: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "best_of": {"use_beam_search": True},
    "length_penalty": {"use_beam_search": True},
    "early_stopping": {"use_beam_search": True},
}


def routes_of(app: FastAPI) -> list[tuple[str, str, set[str]]]:
    """Method, path and names of query parameters of every route with a handler."""
    included: list[Any] = list(app.routes)
    routes = [route for each in included for route in each.original_router.routes]
    return [
        (method, route.path.replace(":path}", "}"), {p.alias for p in route.dependant.query_params})
        for route in routes
        if isinstance(route, APIRoute)
        for method in (route.methods or set()) - {"HEAD"}
    ]


def test_it_describes_all_routes_and_their_queries(running: Running) -> None:
    described = [
        (method.upper(), path, {p["name"] for p in operation["parameters"] if p["in"] == "query"})
        for path, item in document()["paths"].items()
        for method, operation in item.items()
    ]
    routes = [route for route in routes_of(running.app) if route[1] != "/ws/chat"]
    assert sorted(described, key=str) == sorted(routes, key=str)


async def test_it_is_served(running: Running) -> None:
    async with running.http() as http:
        assert (await http.get("/openapi.json")).json() == document()


def test_every_sampling_field_is_described() -> None:
    described = SAMPLING.keys() | {"logprobs"} | UNSUPPORTED_FIELDS.keys()
    assert described == SAMPLING_FIELDS


@pytest.mark.parametrize("name", sorted(SAMPLING))
def test_a_field_takes_what_its_schema_allows(name: str) -> None:
    schema = {"anyOf": [SAMPLING[name], {"type": "null"}]}
    for value in PROBES:
        if name in ("guided_json", "structured_outputs") and not isinstance(value, int | float):
            continue  # what stands in them has a language of its own
        try:
            SamplingParams.from_mapping({name: value, **COMPANIONS.get(name, {})})
            is_taken = True
        except RequestError:
            is_taken = False
        is_valid = jsonschema.Draft202012Validator(schema).is_valid(value)
        assert is_valid == is_taken, f"{name}: {value!r:.100}"


def fuzz(url: str, known: dict[str, str]) -> set[tuple[str, int]]:
    """Send to every route what its schema allows, with `known` ids, and what it does not; which ones answered with what status.

    Every answer must be as the document describes it.
    """
    schema = schemathesis.openapi.from_dict(document())
    seen: set[tuple[str, int]] = set()

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=(
            HealthCheck.too_slow,
            HealthCheck.filter_too_much,
            HealthCheck.data_too_large,
        ),
    )
    @given(data=st.data())
    def send(operation: schemathesis.APIOperation, mode: GenerationMode, data: Any) -> None:
        names = {p.name for p in operation.path_parameters} if mode == "positive" else set()
        ids = {name: known[name] for name in names} if operation.method != "delete" else {}
        strategy = operation.as_strategy(generation_mode=mode, path_parameters=ids or None)
        response = data.draw(strategy).call_and_validate(base_url=url, timeout=20, checks=CHECKS)
        seen.add((operation.label, response.status_code))

    for found in schema.get_all_operations():
        assert isinstance(found, Ok), "the document cannot be read"
        operation = found.ok()
        send(operation, GenerationMode.POSITIVE)
        if operation.body or operation.query:
            send(operation, GenerationMode.NEGATIVE)
    return seen


async def test_anything_is_answered_as_described(start: Start) -> None:
    running = await start(FakeEngine(lambda prompt, index: list("ab")))
    async with running.ready_socket() as client:
        await client.send("send", content="hello")
        started = await client.expect("started")
        await client.until("finished")
    ids = {
        "conversation_id": started["conversation_id"],
        "message_id": started["candidates"][0]["message_id"],
        "name": "fake",
        "block_id": "3",
        "request_id": "1",
    }
    seen = await asyncio.to_thread(fuzz, running.url, ids)
    unreached = {
        f"{method} {path}" for method, path, _ in routes_of(running.app) if path != "/ws/chat"
    } - {label for label, status in seen if status < 300}
    assert unreached == NEED_MORE_THAN_IDS
    assert (running.context.streams, running.engine.live) == ({}, {})
