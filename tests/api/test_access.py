"""The access log: one line a request, with its id, its end and its tokens; never its text or a key."""

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from api.access import Access
from engine.outputs import CandidateFinished, FinishReason, KVUsage, Timings, Usage
from tests.api.conftest import Running, Start

KV = KVUsage(0, 0, 0, 0.0)
BODY = {"prompt": "my secret text", "max_tokens": 5}


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "api.access")


async def lines(running: Running, caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """All lines, once the server has ended: a client may see the end of its answer before."""
    await running.stop()
    return [json.loads(r.getMessage()) for r in caplog.records if r.name == "api.access"]


async def test_a_long_path_is_cut_in_the_log(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async with running.http() as http:
        await http.get("/v1/" + "a" * 20_000)
    (line,) = await lines(running, caplog)
    assert line["path"].startswith("/v1/aaa")
    assert len(line["path"]) < 600


async def test_a_completion_leaves_one_line_without_its_text(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"X-Request-Id": "mine-1"}
    async with running.http() as http:
        answer = await http.post("/v1/completions?x=secret", json=BODY | {"n": 2}, headers=headers)
    assert answer.headers["X-Request-Id"] == "mine-1"
    usage = answer.json()["usage"]
    (line,) = await lines(running, caplog)
    assert line.pop("ms") > 0
    assert line.pop("ttft_ms") == 2.0
    assert line == {
        "request_id": "mine-1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "cached_tokens": 0,
    }
    assert "secret" not in caplog.text


async def test_a_stream_of_two_prompts_counts_both(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"prompt": ["ab", "abc"], "max_tokens": 5, "stream": True}
    async with running.http() as http:
        await http.post("/v1/completions", json=body)
    (line,) = await lines(running, caplog)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (5, 10)


def test_a_prompt_counts_once_and_not_if_it_ended_while_it_waited() -> None:
    usage = Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=3)
    begun = Timings(1.0, 2.0, 3.0, 1.0, 1.0, 1.0)
    waiting = Timings(1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    access = Access("id", "POST", "/v1/completions")
    for index, timings in ((1, begun), (0, begun)):
        access.note_candidate(CandidateFinished(index, FinishReason.STOP, None, usage, timings, KV))
    assert (access.tokens["prompt_tokens"], access.tokens["completion_tokens"]) == (7, 4)
    never = replace(usage, completion_tokens=0, cached_tokens=0)
    access.note_candidate(CandidateFinished(0, FinishReason.ABORT, None, never, waiting, KV))
    assert (access.tokens["prompt_tokens"], access.tokens["completion_tokens"]) == (7, 4)


async def test_embeddings_tell_their_prompt_tokens(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async with running.http() as http:
        await http.post("/v1/embeddings", json={"input": ["ab", "abc"]})
    (line,) = await lines(running, caplog)
    assert (line["path"], line["status"], line["prompt_tokens"]) == ("/v1/embeddings", 200, 5)


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "\u00e9"])
async def test_an_unusable_id_is_replaced(
    running: Running, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    async with running.http() as http:
        headers = [(b"X-Request-Id", given.encode("latin-1"))]
        answers = [await http.get("/v1/models", headers=headers) for _ in range(2)]
    ids = [answer.headers["X-Request-Id"] for answer in answers]
    assert all(len(one) == 32 for one in ids)
    assert len(set(ids)) == 2
    assert [line["request_id"] for line in await lines(running, caplog)] == ids


async def test_errors_and_refusals_have_their_status_and_id(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(api_key="s3cret")
    async with running.http() as http:
        refused = await http.get("/v1/models")
        missing = await http.get("/v1/nothing%0Ahere?api_key=s3cret")
    first, second = await lines(running, caplog)
    assert (first["status"], second["status"]) == (401, 404)
    assert second["path"] == "/v1/nothing\nhere"
    assert all(len(answer.headers["X-Request-Id"]) == 32 for answer in (refused, missing))
    assert "s3cret" not in caplog.text


async def test_a_key_in_the_wrong_place_is_not_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(api_key="s3cret,0ther")
    headers = {"Authorization": "Bearer s3cret", "X-Request-Id": "s3cret"}
    async with running.http() as http:
        answer = await http.get("/v1/models/0ther", headers=headers)
    assert answer.headers["X-Request-Id"] == "s3cret"
    (line,) = await lines(running, caplog)
    assert (line["request_id"], line["path"]) == ("***", "/v1/models/***")
    assert "s3cret" not in caplog.text


async def test_what_is_asked_for_all_the_time_leaves_no_line(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async with running.http() as http:
        for path in ("/health", "/ping", "/metrics", "/"):
            assert (await http.get(path)).headers["X-Request-Id"]
    assert await lines(running, caplog) == []


async def test_what_the_page_reads_is_for_debugging(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    of_page, of_site = ({"Sec-Fetch-Site": site} for site in ("same-origin", "none"))
    async with running.http() as http:
        await http.get("/api/conversations", headers=of_page)
        await http.head("/api/stats", headers=of_page)
        await http.get("/api/stats", headers=of_site)
        await http.post("/api/conversations/x/restore", headers=of_page)
    shown = [(line["method"], line["path"]) for line in await lines(running, caplog)]
    assert shown == [("GET", "/api/stats"), ("POST", "/api/conversations/x/restore")]


async def test_at_level_debug_everything_has_a_line(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "api.access")
    async with running.http() as http:
        await http.get("/ping")
        await http.get("/api/conversations", headers={"Sec-Fetch-Site": "same-origin"})
    assert [x["path"] for x in await lines(running, caplog)] == ["/ping", "/api/conversations"]


async def test_a_socket_has_its_line_when_it_closes(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async with running.ready_socket():
        assert [r for r in caplog.records if r.name == "api.access"] == []
    (line,) = await lines(running, caplog)
    assert (line["method"], line["path"], line["status"]) == ("SOCKET", "/ws/chat", 101)


async def test_a_client_that_leaves_before_its_answer_is_499(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.engine.token_interval = 60.0
    host, port = running.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(BODY).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    async with running.http() as http, asyncio.timeout(10):
        while not (await http.get("/api/requests")).json()["requests"]:
            pass
    writer.close()
    first, *_, last = await lines(running, caplog)
    assert (first["path"], last["path"], last["status"]) == (
        "/api/requests",
        "/v1/completions",
        499,
    )
