"""The page's servers and a browser for the end-to-end tests.

`server` is the app as a process of its own, once with the scripted engine and once with the built-in model; `browser`
is the Chromium that is installed. Without one the browser tests are skipped, and fail where `CI` is set.
"""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, Response, async_playwright, expect

from tests.e2e.app_process import ROOT, AppProcess, running_app
from ui.screenshots import CHROMIUM_FLAGS, find_chromium

DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
PATIENCE_MS = 60_000

expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def running_fake_app(directory: Path, port: int = 0) -> Iterator[AppProcess]:
    """The app around the scripted engine; its log and database lie in `directory`."""
    port = port or free_port()
    log = directory / "app.log"
    command = [sys.executable, "-m", "tests.e2e.fake_app"]
    command += ["--port", str(port), "--data-dir", str(directory)]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
    app = AppProcess(process, port, log)
    try:
        app.wait_ready()
        yield app
    finally:
        if process.poll() is None:
            app.terminate()


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(
    scope="module",
    params=["scripted", pytest.param("model", marks=pytest.mark.model)],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AppProcess]:
    """A running app, ready."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "model":
        request.getfixturevalue("builtin_model_path")
        with running_app(directory, "--num-blocks", "1024") as app:
            yield app
        return
    with running_fake_app(directory) as app:
        yield app


@pytest.fixture(scope="module")
def fake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    """A running app with scripted answers, for what only those can show."""
    with running_fake_app(tmp_path_factory.mktemp("fake")) as app:
        yield app


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    """The installed Chromium."""
    executable = find_chromium()
    if executable is None and os.environ.get("CI") == "true":
        pytest.fail("no Chromium, and CI must have one")
    if executable is None:
        pytest.skip("no Chromium: install it, or name yours in CHROMIUM")
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=executable, args=list(CHROMIUM_FLAGS)
        )
        yield chromium
        await chromium.close()


class Complaints:
    """What a page wrote to its console as an error, threw, or failed to load."""

    def __init__(self, page: Page) -> None:
        self.lines: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.lines.append(str(error)))
        page.on("response", self._on_response)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.lines.append(message.text)

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.lines.append(f"{response.status} {response.url}")


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A desktop window of its own; the test fails when the page has complained."""
    async for window in _window(browser, DESKTOP):
        yield window


@pytest_asyncio.fixture(loop_scope="module")
async def phone(browser: Browser) -> AsyncIterator[Page]:
    """A phone's window, with touch."""
    async for window in _window(browser, PHONE, is_mobile=True, has_touch=True):
        yield window


async def _window(
    browser: Browser, viewport: dict[str, int], **options: bool
) -> AsyncIterator[Page]:
    context = await browser.new_context(viewport=viewport, **options)  # pyright: ignore[reportArgumentType]
    window = await context.new_page()
    window.set_default_timeout(PATIENCE_MS)
    complaints = Complaints(window)
    yield window
    await context.close()
    assert complaints.lines == []
