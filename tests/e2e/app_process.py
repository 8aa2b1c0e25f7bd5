"""The real app as a child process: started on a free port, awaited until ready, ended with SIGTERM."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READY_TIMEOUT = 120.0
CLEAR_TIMEOUT = 30.0


@dataclass
class AppProcess:
    """A running app; `log` is the file that holds what it printed."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws/chat"

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return json.load(response)

    def post(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=150) as response:
            return json.load(response)

    def clear(self) -> None:
        """Remove all conversations, and return when every answer that was being written has ended."""
        assert self.process.poll() is None, f"the app has ended:\n{self.log.read_text()}"
        while items := self.get("/api/conversations")["items"]:
            for item in items:
                path = f"/api/conversations/{item['id']}?purge=true"
                request = urllib.request.Request(self.url + path, method="DELETE")
                urllib.request.urlopen(request, timeout=30).close()
        deadline = time.monotonic() + CLEAR_TIMEOUT
        while self.live_blocks():
            assert time.monotonic() < deadline, "an answer goes on without a conversation"
            time.sleep(0.01)

    def live_blocks(self) -> int:
        blocks = self.get("/api/stats")["blocks"]
        return blocks["private"] + blocks["shared"]

    def wait_ready(self) -> None:
        """Poll /health until 200; raises with the log when the process ends or time is up."""
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.get("/health")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise AssertionError(f"the app did not become ready:\n{self.log.read_text()}")

    def terminate(self) -> int:
        """SIGTERM, then the exit code; a process that hangs is killed and fails the caller."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextmanager
def running_app(directory: Path, *options: str) -> Iterator[AppProcess]:
    """Start `python app.py` with a database in `directory` and the model of the user's data folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = directory / "app.log"
    database = f"sqlite+aiosqlite:///{directory / 'pageturn.db'}"
    command = [sys.executable, "-W", "error::ResourceWarning", str(ROOT / "app.py")]
    command += ["--port", str(port), "--database-url", database, *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=directory, env=os.environ
        )
    app = AppProcess(process, port, log)
    try:
        app.wait_ready()
        yield app
    finally:
        if process.poll() is None:
            app.terminate()
