"""What /openapi.json says of the engine's routes is what they answer: every field, and no other."""

import copy
import time
from typing import Any

import jsonschema
import pytest

from api.openapi import document
from chat.sampler import sample_of
from tests.api.conftest import Start
from tests.fake_engine import FakeEngine


def validator_of(path: str) -> jsonschema.Draft202012Validator:
    described = document()
    answer = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
    schema = answer["schema"] | {"components": described["components"]}
    return jsonschema.Draft202012Validator(schema)


def objects_in(value: Any) -> list[dict[str, Any]]:
    """All objects in a document, itself included."""
    if isinstance(value, list):
        return [found for item in value for found in objects_in(item)]
    if not isinstance(value, dict):
        return []
    return [value, *(found for item in value.values() for found in objects_in(item))]


def check(path: str, answer: Any) -> None:
    """The answer as described; with a field more, or one less, in any of its objects it would not be."""
    validator = validator_of(path)
    validator.validate(answer)
    for place in range(len(objects_in(answer))):
        wider, narrower = copy.deepcopy(answer), copy.deepcopy(answer)
        objects_in(wider)[place]["another"] = 1
        assert not validator.is_valid(wider), objects_in(wider)[place]
        objects_in(narrower)[place].popitem()
        assert not validator.is_valid(narrower), objects_in(narrower)[place]


async def test_answers_are_as_described(start: Start) -> None:
    running = await start(FakeEngine(token_interval=30.0, num_blocks=6))
    stats, now = running.engine.stats, int(time.time())
    samples = running.context.chat.history._samples
    await samples.add(*(sample_of(stats, now - 9 + i, now - 500) for i in range(5)))
    async with running.ready_socket() as client, running.http() as http:
        await client.send("send", content="hello")
        await client.skip_to("delta")
        (request_id,) = running.engine.live
        for path, asked in {
            "/api/stats": "/api/stats",
            "/api/blocks": "/api/blocks",
            "/api/blocks/{block_id}": "/api/blocks/2",
            "/api/requests": "/api/requests",
            "/api/requests/{request_id}": f"/api/requests/{request_id}",
            "/api/history": "/api/history?window=15m",
            "/api/defaults": "/api/defaults",
        }.items():
            response = await http.get(asked)
            assert response.status_code == 200
            check(path, response.json())


def test_a_row_of_history_has_all_columns() -> None:
    validator, answer = validator_of("/api/history"), document()["paths"]["/api/history"]["get"]
    schema = answer["responses"]["200"]["content"]["application/json"]["schema"]["properties"]
    row: list[Any] = [1, True, *[1.0] * 5, 1.0, 1.0, 1, 1, 1, 1, *[None] * 7]
    whole = {
        "start": 1,
        "since": 1,
        "end": 2,
        "step": 1,
        "fields": schema["fields"]["const"],
        "rows": [row],
    }
    validator.validate(whole)
    assert not validator.is_valid(whole | {"rows": [row[:-1]]})
    assert not validator.is_valid(whole | {"rows": [[*row, None]]})
    assert not validator.is_valid(whole | {"rows": [[*row[:-1], "1"]]})


@pytest.mark.parametrize("state", ["free", "full"])
def test_states_of_blocks_are_named(state: str) -> None:
    block = {"block_id": 1, "state": state, "ref_count": 0, "owners": []}
    assert validator_of("/api/blocks").is_valid({"blocks": [block]}) == (state == "free")
