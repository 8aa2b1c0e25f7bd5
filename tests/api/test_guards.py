"""Size limit, origin and headers, on every route they must cover."""

import asyncio
import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx2 as httpx
import pytest
from fastapi.responses import StreamingResponse
from websockets.exceptions import InvalidStatus

from api.guards import (
    BODY_LIMIT,
    DISCARD_PAUSE_S,
    IMPORT_LIMIT,
    IMPORT_PATH,
    MIB,
    SECURITY_HEADERS,
)
from api.large_json import parse_large_json
from tests.api.conftest import Running, Start
from tests.api.test_conversations import error_of
from tests.chat.exports import chatgpt

KEY = "s3cret-key"


async def chunks(total: int) -> AsyncIterator[bytes]:
    for _ in range(total // 2**20 + 1):
        yield b" " * 2**20


async def test_a_body_over_the_limit_is_413_declared_or_not(running: Running) -> None:
    async with running.http() as http:
        for path, limit in ((("/v1/completions"), BODY_LIMIT), (IMPORT_PATH, IMPORT_LIMIT)):
            declared = await http.post(path, content=b" " * (limit + 1))
            assert declared.status_code == 413
            assert "MiB" in declared.json()["error"]["message"]
            streamed = await http.post(path, content=chunks(limit))
            assert streamed.status_code == 413
        assert (await http.post("/v1/completions", content=b" " * BODY_LIMIT)).status_code == 400
        assert (await http.get("/v1/models")).status_code == 200


async def test_a_body_is_refused_while_it_is_being_read(running: Running) -> None:
    host, port = running.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    for _ in range(9):
        writer.write(b"100000\r\n" + b" " * 2**20 + b"\r\n")
    async with asyncio.timeout(10):
        status = await reader.readline()
    writer.close()
    assert status.split()[1] == b"413"


def post_by_urllib(url: str, size: int) -> tuple[int, str]:
    """Sends everything before it listens."""
    request = urllib.request.Request(url, b" " * size, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "limit"), [("/v1/completions", BODY_LIMIT), (IMPORT_PATH, IMPORT_LIMIT)]
)
async def test_a_client_that_sends_before_it_listens_hears_the_limit(
    running: Running, path: str, limit: int
) -> None:
    told = await asyncio.to_thread(post_by_urllib, running.url + path, 3 * limit // 2)
    assert told == (413, f"the body is larger than {limit // MIB} MiB")


async def test_who_waits_for_a_word_before_a_large_body_gets_it_at_once(running: Running) -> None:
    host, port = running.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    writer.write(f"{head}Content-Length: {2 * BODY_LIMIT}\r\n\r\n".encode())
    async with asyncio.timeout(DISCARD_PAUSE_S / 2):
        status = await reader.readline()
    writer.close()
    assert status.split()[1] == b"413"


async def test_a_body_that_is_announced_and_does_not_come_is_refused_all_the_same(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.guards.DISCARD_PAUSE_S", 0.05)
    host, port = running.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    writer.write(f"{head}Content-Length: {2**50}\r\n\r\n".encode())
    async with asyncio.timeout(10):
        status = await reader.readline()
    writer.close()
    assert status.split()[1] == b"413"


@pytest.mark.parametrize("is_declared", [True, False])
async def test_who_sends_a_refused_body_drop_by_drop_does_not_hold_the_connection(
    running: Running, monkeypatch: pytest.MonkeyPatch, is_declared: bool
) -> None:
    monkeypatch.setattr("api.guards.DISCARD_S", 0.2)
    monkeypatch.setattr("api.guards.BODY_LIMIT", 0)
    host, port = running.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    length = "Content-Length: 1000" if is_declared else "Transfer-Encoding: chunked"
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())

    async def drip() -> None:
        while not writer.is_closing():
            writer.write(b" " if is_declared else b"1\r\n \r\n")
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drip())
    async with asyncio.timeout(10):
        status = await reader.readline()
        with suppress(ConnectionResetError):
            await reader.read()
    writer.close()
    await dripping
    assert status.split()[1] == b"413"


READ_BODIES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", IMPORT_PATH),
    ("PATCH", "/api/conversations/x"),
]


async def test_a_client_that_leaves_while_its_body_is_read_is_no_error(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = running.address.split(":")
    with caplog.at_level(logging.WARNING):
        for method, path in READ_BODIES:
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
            writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
            async with asyncio.timeout(10):
                assert b"100 Continue" in await reader.readline()
            writer.write(b"{")
            writer.close()
        await running.stop()
    assert caplog.records == []


async def test_what_a_shutdown_cuts_is_refused_and_stores_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def parse_slowly(body: bytes) -> object:
        has_begun.set()
        assert may_end.wait(20), "nobody let the parser go on"
        return parse_large_json(body)

    monkeypatch.setattr("api.transfers.parse_large_json", parse_slowly)
    monkeypatch.setattr("api.server.CUT_AFTER_S", 0.05)
    running = await start()
    async with running.http() as http:
        importing = asyncio.create_task(http.post(IMPORT_PATH, json=chatgpt()))
        assert await asyncio.to_thread(has_begun.wait, 20)
        await running.stop()
        refused = await importing
        may_end.set()
    assert error_of(refused) == (503, "shutting_down", None)
    assert refused.headers.items() >= {k.lower(): v for k, v in SECURITY_HEADERS.items()}.items()
    assert [record.exc_info for record in caplog.records] == [None]


async def test_an_answer_that_a_shutdown_cuts_ends_without_a_traceback(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("api.server.CUT_AFTER_S", 0.05)
    running = await start()

    @running.app.get("/endless")
    async def endless() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.Event().wait()

        return StreamingResponse(pieces())

    async with running.http() as http, http.stream("GET", "/endless") as answer:
        pieces = answer.aiter_bytes()
        assert await anext(pieces) == b"first"
        await running.stop()
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(pieces)
    assert {record.exc_info for record in caplog.records} == {None}


async def test_another_sites_page_cannot_write(running: Running) -> None:
    evil = {"Origin": "http://evil.example"}
    own = {"Origin": running.url}
    async with running.http() as http:
        refused = await http.post(IMPORT_PATH, headers=evil, json={})
        assert refused.status_code == 403
        assert (await http.delete("/api/conversations/x", headers=evil)).status_code == 403
        assert (await http.delete("/api/conversations/x", headers=own)).status_code == 404
        assert (await http.get("/api/conversations", headers=evil)).status_code == 200


async def test_a_refused_socket_gets_its_answer_and_logs_nothing(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(api_key=KEY)
    evil = {"Origin": "http://evil.example"}
    with caplog.at_level(logging.WARNING):
        for query, status in (("", 401), (f"?api_key={KEY}", 403)):
            with pytest.raises(InvalidStatus) as refusal:
                async with running.socket(query, additional_headers=evil):
                    pass
            response = refusal.value.response
            assert response.status_code == status
            assert b'{"error":' in (response.body or b"")
        await running.stop()
    assert caplog.records == []


async def test_every_answer_carries_the_security_headers(start: Start) -> None:
    running = await start(api_key=KEY)
    async with running.http() as http:
        for path in ("/health", "/", "/v1/models", f"/v1/nothing?api_key={KEY}"):
            response = await http.get(path)
            for name, value in SECURITY_HEADERS.items():
                assert response.headers[name] == value, path
    assert SECURITY_HEADERS["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert "script-src" not in SECURITY_HEADERS["Content-Security-Policy"]
