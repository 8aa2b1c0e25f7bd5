"""The app as a process and as a whole: start, address, signals, exit codes, the page around a fake engine."""

import asyncio
import errno
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from filelock import FileLock
from websockets.asyncio.client import connect

from api.settings import Settings
from app import create_app, main
from application import create_api
from engine.errors import ModelLoadError
from engine.stats import EngineStatus
from tests.fake_engine import FakeEngine
from ui.page_policy import policy_of

ROOT = Path(__file__).resolve().parents[1]
# The real main around a fake engine, and without the page, which takes seconds to import.
CHILD = """
import sys, app, application
from tests.fake_engine import FakeEngine
app.build_engine = lambda settings: FakeEngine(token_interval=0.05)
app.create_app = lambda settings, engine: application.create_api(settings, engine)
sys.exit(app.main(sys.argv[1:]))
"""
# The same, and an answer takes longer than any test.
SLOW_CHILD = CHILD.replace("FakeEngine(", "FakeEngine(lambda prompt, index: ['word '] * 100_000, ")


def create_without_page(settings: Settings, *, engine: FakeEngine) -> FastAPI:
    return create_api(settings, engine)


class Child:
    """A running app."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process, self.url = process, url

    async def next_line(self) -> str:
        """What it writes next to stdout."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode()

    async def end(self) -> tuple[int, str]:
        """Exit code and everything it wrote to stderr."""
        assert self.process.stderr is not None
        async with asyncio.timeout(15):
            errors = (await self.process.stderr.read()).decode()
            return await self.process.wait(), errors

    async def end_quietly(self) -> int:
        """Exit code, when it wrote nothing but the access log."""
        code, errors = await self.end()
        lines = errors.splitlines()
        assert [line for line in lines if not line.startswith("INFO api.access: {")] == []
        return code


@asynccontextmanager
async def child(
    tmp_path: Path, *options: str, code: str = CHILD, **environment: str
) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", code),
        *("--port", "0", "--data-dir", str(tmp_path), *options),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    started = Child(process, "")
    try:
        line = await started.next_line()
        assert line.startswith("Pageturn is at http://127.0.0.1:"), line
        started.url = line.split()[3]
        yield started
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_terminal_tells_the_address_that_the_model_is_ready_that_it_stops_and_no_more(
    tmp_path: Path,
) -> None:
    async with child(tmp_path) as app:
        assert await app.next_line() == "The model is ready: fake\n"
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{app.url}/health")).json()["status"] == "ready"
        app.process.send_signal(signal.SIGTERM)
        assert await app.end_quietly() == 0
        assert (await app.next_line()).startswith("Stopping: what is being written has 5 s")
        assert await app.next_line() == ""


@pytest.mark.parametrize("closed", [(), (1,), (0, 1, 2)], ids=str)
async def test_a_terminal_that_nobody_reads_or_that_is_not_there_ends_nothing(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nobody, terminal = os.pipe()
    os.close(nobody)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", CHILD),
        *("--port", str(port), "--data-dir", str(tmp_path)),
        cwd=ROOT,
        stdout=terminal,
        preexec_fn=lambda: [os.close(number) for number in closed],
    )
    os.close(terminal)
    try:
        assert await _health_once_there(f"http://127.0.0.1:{port}") == "ready"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _health_once_there(url: str) -> str:
    async with asyncio.timeout(60), httpx.AsyncClient() as http:
        while True:
            try:
                return (await http.get(f"{url}/health")).json()["status"]
            except httpx.ConnectError:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_in_the_middle_of_an_answer_ends_with_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with child(tmp_path, "--shutdown-timeout", "0") as app:
        address = app.url.replace("http", "ws") + "/ws/chat"
        reasons = []
        async with connect(address) as socket:
            await socket.send('{"type": "send", "content": "hello"}')
            async for text in socket:
                frame = json.loads(text)
                if frame["type"] == "delta" and not reasons:
                    app.process.send_signal(number)
                    reasons.append("sent")
                if frame["type"] == "candidate":
                    reasons.append(frame["finish_reason"])
        assert reasons == ["sent", "abort"]
        assert socket.close_code == 1001
        assert await app.end_quietly() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_what_the_first_one_gave_time(
    tmp_path: Path, second: signal.Signals
) -> None:
    async with child(tmp_path, "--shutdown-timeout", "10", code=SLOW_CHILD) as app:
        started = time.monotonic()
        async with connect(app.url.replace("http", "ws") + "/ws/chat") as socket:
            await socket.send('{"type": "send", "content": "hello"}')
            frames = [json.loads(await socket.recv())]
            while frames[-1]["type"] != "started":
                frames.append(json.loads(await socket.recv()))
            app.process.send_signal(signal.SIGTERM)
            await _until_refused(app.url)
            app.process.send_signal(second)
            frames += [json.loads(text) async for text in socket]
        assert socket.close_code == 1001
        assert await app.end_quietly() == 0
        assert time.monotonic() - started < 9
    (end,) = [frame for frame in frames if frame["type"] == "candidate"]
    assert end["finish_reason"] == "abort"
    with closing(sqlite3.connect(tmp_path / "pageturn.db")) as database:
        statuses = database.execute("select status from messages order by created_at").fetchall()
    assert statuses == [("done",), ("interrupted",)]


async def _until_refused(url: str) -> None:
    """Until the server listens no more."""
    host, port = url.removeprefix("http://").split(":")
    async with asyncio.timeout(10):
        with suppress(ConnectionRefusedError):
            while True:
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
async def test_a_signal_while_the_start_imports_ends_it_quietly(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    slow = "import sys, time; sys.stdout.write('importing\\n'); sys.stdout.flush(); time.sleep(60)"
    (tmp_path / "platformdirs.py").write_text(slow)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "app.py")),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    app = Child(process, "")
    assert await app.next_line() == "importing\n"
    process.send_signal(number)
    assert await app.end() == (code, "")


async def test_streams_get_their_time_at_shutdown(tmp_path: Path) -> None:
    async with child(tmp_path, "--shutdown-timeout", "10") as app, httpx.AsyncClient() as http:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        path = f"{app.url}/v1/chat/completions"
        async with http.stream("POST", path, json=body) as response:
            lines = [line async for line in _signal_after_first(response, app.process)]
        assert lines[-2] == "data: [DONE]"
        assert (await app.end())[0] == 0


async def _signal_after_first(
    response: httpx.Response, process: asyncio.subprocess.Process
) -> AsyncIterator[str]:
    sent = False
    async for line in response.aiter_lines():
        if not sent:
            process.send_signal(signal.SIGTERM)
            sent = True
        yield line


async def test_a_silent_socket_and_an_idle_connection_do_not_hold_up_the_end(
    tmp_path: Path,
) -> None:
    async with child(tmp_path) as app:
        host, port = app.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"GET /ws/chat HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\n"
        head += "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        writer.write(f"{head}Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode())
        assert b"101" in await reader.readline()
        _, idle = await asyncio.open_connection(host, int(port))
        started = time.monotonic()
        app.process.send_signal(signal.SIGTERM)
        assert await app.end_quietly() == 0
        assert time.monotonic() - started < 10
        writer.close()
        idle.close()


async def test_keys_stay_out_of_the_log(tmp_path: Path) -> None:
    async with child(tmp_path, "--api-key", "s3cret", "--log-level", "debug") as app:
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{app.url}/v1/models?api_key=s3cret")).status_code == 200
        address = app.url.replace("http", "ws") + "/ws/chat?api_key=s3cret"
        async with connect(address) as socket:
            await socket.recv()
        app.process.send_signal(signal.SIGTERM)
        code, errors = await app.end()
    assert code == 0
    assert "api_key=***" in errors
    assert "s3cret" not in errors


async def test_unknown_variables_are_named_in_one_warning(tmp_path: Path) -> None:
    async with child(tmp_path, PAGETURN_PROT="1", PAGETURN_ZEBRA="2") as app:
        app.process.send_signal(signal.SIGTERM)
        code, errors = await app.end()
    assert code == 0
    assert errors.splitlines() == [
        "WARNING app: these environment variables are no options: PAGETURN_PROT, PAGETURN_ZEBRA"
    ]


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port), "--data-dir", str(tmp_path)]) == 2
    line = f"--port: {port} is in use; choose another, or 0 for any that is free\n"
    assert capsys.readouterr().err == line


def test_a_port_of_the_system_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(listener: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert main(["--port", "80", "--data-dir", str(tmp_path)]) == 2
    line = "--port: 80 may not be used by this user; choose one from 1024 on\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("option", ["--quantization", "--kv-cache-dtype"])
def test_numbers_of_a_gpu_are_refused_before_a_model_is_looked_for(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    nowhere = str(tmp_path / "nowhere")
    assert main(["--port", "0", "--model", nowhere, option, "fp8"]) == 2
    assert capsys.readouterr().err.startswith(f"{option}: 'fp8' is not allowed; auto")


def test_a_bad_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--block-size", "0"]) == 2
    line = "--block-size: 0 is not allowed; a whole number from 1 to 1024\n"
    assert capsys.readouterr().err == line


def test_a_bad_option_is_refused_before_much_is_imported() -> None:
    code = "import sys, app; app.main(['--block-size', '0']); sys.exit('fastapi' in sys.modules)"
    refused = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr.count("\n")) == (0, 1)


def test_an_address_that_is_not_ours_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--host", "192.0.2.1", "--port", "0"]) == 2
    assert capsys.readouterr().err.startswith("--host: '192.0.2.1' is not allowed")


def test_a_model_that_cannot_be_had_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(settings: Settings) -> None:
        raise ModelLoadError("no network, and no model in the data folder")

    monkeypatch.setattr("app.build_engine", fail)
    assert main(["--port", "0"]) == 1
    assert capsys.readouterr().err == "no network, and no model in the data folder\n"


def test_a_model_that_proves_unusable_ends_the_start_with_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Unusable(FakeEngine):
        async def wait_ready(self) -> None:
            self.status = EngineStatus("dead", error="architecture Zebra is not supported")
            raise ModelLoadError("architecture Zebra is not supported")

    monkeypatch.setattr("app.build_engine", lambda settings: Unusable())
    monkeypatch.setattr("app.create_app", create_without_page)
    assert main(["--port", "0", "--data-dir", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.err == "architecture Zebra is not supported\n"
    assert "Stopping" not in shown.out


def test_a_database_that_cannot_be_opened_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("app.build_engine", lambda settings: FakeEngine())
    monkeypatch.setattr("app.create_app", create_without_page)
    url = f"sqlite+aiosqlite:///{tmp_path}"
    assert main(["--port", "0", "--database-url", url]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_database_that_another_app_has_is_a_bad_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("app.build_engine", lambda settings: FakeEngine())
    monkeypatch.setattr("app.create_app", create_without_page)
    with FileLock(tmp_path / "pageturn.db.lock"):
        assert main(["--port", "0", "--data-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("another app uses the database")
    assert error.count("\n") == 1


def test_a_database_url_that_is_none_is_a_bad_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.build_engine", lambda settings: FakeEngine())
    monkeypatch.setattr("app.create_app", create_without_page)
    for url in ("zebra", "zebra://"):
        assert main(["--port", "0", "--database-url", url]) == 2
        assert capsys.readouterr().err.startswith("--database-url: ")


async def test_the_page_is_served_beside_everything_else(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path), engine=FakeEngine())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http,
    ):
        page = await http.get("/")
        assert page.status_code == 200
        assert "Pageturn" in page.text
        assert page.headers.get_list("content-security-policy") == [policy_of(page.content)]
        assert (await http.get("/health")).json()["status"] == "ready"
        assert (await http.get("/v1/nothing")).json()["error"]["code"] == "unknown_route"
        assert (await http.get("/v1/chat/completions")).status_code == 405
