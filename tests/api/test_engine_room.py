"""What the dashboard shows, asked over HTTP."""

import csv
import io
import time
from urllib.parse import quote

import pytest

from api.engine_room import HISTORY_FIELDS
from chat.sampler import sample_of
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine


async def test_stats_are_one_document_that_adds_up(running: Running) -> None:
    async with running.http() as http:
        document = (await http.get("/api/stats")).json()
    blocks = document["blocks"]
    assert blocks.keys() == {"total", "private", "shared", "cached", "free", "block_size"}
    parts = ("private", "shared", "cached", "free")
    assert sum(blocks[part] for part in parts) == blocks["total"]
    assert document["tokens"].keys() == {"capacity", "stored"}
    assert {"running", "waiting"} <= document["requests"].keys()
    assert document["counters"].keys() >= {
        "preemptions",
        "forks",
        "cow_copies",
        "prefix_queries",
        "prefix_hits",
        "generated_tokens",
        "prompt_tokens",
    }
    policies = {"paged", "max_len", "pow2", "exact"}
    assert document["counterfactual_bytes"].keys() == policies
    assert document["counterfactual_bytes_ended"].keys() == policies
    assert document["internal_fragmentation"] == {"bytes": 6, "share": 0.25}
    assert document["model"]["model_name"] == "fake"
    assert document["machine"]["process"]["memory_bytes"] > 10e6
    assert {"waiting_capacity", "waiting_budget", "waiting_deferred"} < document["requests"].keys()
    assert document["blocks_saved"] == 0


async def test_blocks_and_requests(start: Start) -> None:
    running = await start(FakeEngine(token_interval=30.0, num_blocks=6))
    async with running.ready_socket() as client, running.http() as http:
        await client.send("send", content="hello")
        await client.skip_to("delta")
        blocks = (await http.get("/api/blocks")).json()["blocks"]
        requests = (await http.get("/api/requests")).json()["requests"]
    assert [block["state"] for block in blocks] == ["private"] * 4 + ["free"] * 2
    assert blocks[0].keys() == {"block_id", "state", "ref_count", "owners"}
    assert [request["state"] for request in requests] == ["running"]


async def test_a_block_and_whose_it_is(start: Start) -> None:
    running = await start(FakeEngine(token_interval=30.0, num_blocks=6))
    async with running.ready_socket() as client, running.http() as http:
        await client.send("send", content="hello")
        started = await client.skip_to("started")
        await client.skip_to("delta")
        block = (await http.get("/api/blocks/2")).json()
        free = (await http.get("/api/blocks/5")).json()
        beyond = await http.get("/api/blocks/6")
    (holder,) = block.pop("holders")
    assert block == {"block_id": 2, "state": "private", "ref_count": 1, "num_tokens": 16}
    assert (holder["position"], holder["title"]) == (2, "hello")
    assert holder["conversation_id"] == started["conversation_id"]
    assert (free["state"], free["holders"]) == ("free", [])
    assert beyond.status_code == 404
    assert "6; there are blocks 0 to 5" in beyond.json()["error"]["message"]


async def test_a_request_tells_its_life_and_can_be_stopped(start: Start) -> None:
    running = await start(FakeEngine(token_interval=0.01))
    async with running.ready_socket() as client, running.http() as http:
        await client.send("send", content="long" * 200)
        started = await client.skip_to("started")
        await client.skip_to("delta")
        (item,) = (await http.get("/api/requests")).json()["requests"]
        path = f"/api/requests/{item['request_id']}"
        told = (await http.get(path)).json()
        assert told["generation_id"] == started["generation_id"]
        assert [event["kind"] for event in told["events"]] == ["queued", "started"]
        assert (await http.post(f"{path}/stop")).status_code == 202
        candidate = await client.skip_to("candidate")
        assert candidate["finish_reason"] == "abort"
        await client.skip_to("finished")
        tree = (await http.get(f"/api/conversations/{started['conversation_id']}")).json()
        assert tree["messages"][-1]["status"] == "stopped"
        assert (await http.post(f"{path}/stop")).status_code == 404
        assert (await http.get("/api/requests/77")).status_code == 404


async def test_a_programs_request_is_stopped_too(start: Start) -> None:
    engine = FakeEngine(lambda prompt, index: ["word "] * 5000, token_interval=0.01)
    running = await start(engine)
    async with running.http() as http, running.http() as other:
        body = {"prompt": "a", "max_tokens": 4000, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            (request_id,) = engine.live
            (item,) = (await other.get("/api/requests")).json()["requests"]
            assert (item["request_id"], item["title"]) == (request_id, None)
            assert (await other.post(f"/api/requests/{request_id}/stop")).status_code == 202
            rest = [line async for line in lines if '"finish_reason"' in line]
    assert '"finish_reason":"abort"' in rest[-1].replace(" ", "")


async def test_history_as_a_table_and_as_a_file(running: Running) -> None:
    stats, now = running.engine.stats, int(time.time())
    samples = running.context.chat.history._samples
    await samples.add(*(sample_of(stats, now - 100 + i, now - 500) for i in range(5)))
    async with running.http() as http:
        last = (await http.get("/api/history?window=15m")).json()
        picked = (await http.get(f"/api/history?start={now - 100}&end={now - 97}")).json()
        response = await http.get(f"/api/history?start={now - 100}&end={now - 97}&format=csv")
        new = (await http.get(f"/api/history?window=15m&since={last['rows'][-1][0]}")).json()
    assert new["rows"] == last["rows"][-1:]
    assert (last["since"], new["since"]) == (last["start"], new["rows"][0][0] // 2 * 2)
    assert (last["fields"], last["step"], last["end"] - last["start"]) == (HISTORY_FIELDS, 2, 900)
    assert [row[0] for row in picked["rows"]] == [now - 100, now - 99, now - 98]
    assert "attachment" in response.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [int(row["time"]) for row in rows] == [now - 100, now - 99, now - 98]
    assert (rows[1]["utilisation"], rows[1]["after_gap"], rows[1]["hit_rate"]) == (
        "0.0",
        "False",
        "",
    )


@pytest.mark.parametrize(
    "query",
    [
        "window=1y",
        "start=5",
        "start=9&end=9",
        "start=-1&end=4",
        "format=xml",
        "since=1&start=1&end=4",
        "window=1d&start=1&end=4",
        "since=1_0",
        "since=%2B1",
        "since=%201",
        "since=1e3",
        "since=1.0",
        "since=%D9%A1",
        "since=",
        "since=1&since=2",
        "format=csv&format=csv",
    ],
)
async def test_a_history_that_cannot_be_is_refused(running: Running, query: str) -> None:
    async with running.http() as http:
        response = await http.get(f"/api/history?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] in query


@pytest.mark.parametrize("number", ["1_0", "+1", "1.0", "1e1", "٣"])
@pytest.mark.parametrize(
    ("method", "path", "param"),
    [
        ("GET", "/api/blocks/{}", "block_id"),
        ("GET", "/api/requests/{}", "request_id"),
        ("POST", "/api/requests/{}/stop", "request_id"),
        ("GET", "/api/conversations?limit={}", "limit"),
        ("GET", "/api/messages/x/choices?at_token={}", "at_token"),
    ],
)
async def test_numbers_in_addresses_are_plain_digits(
    running: Running, method: str, path: str, param: str, number: str
) -> None:
    async with running.http() as http:
        response = await http.request(method, path.format(quote(number)))
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": f"{param}: {number!r} is not allowed; a whole number is required",
        "type": "invalid_request_error",
        "param": param,
        "code": "invalid_value",
    }
