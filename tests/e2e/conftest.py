"""The page's servers and a browser for the end-to-end tests.

`server` is the app as a process of its own, once with the scripted engine and once with the built-in model; `browser`
is the Chromium that is installed. Without one the browser tests are skipped, and fail where `CI` is set.

Processes take seconds to start, so all tests of this folder share them, in each pytest process. What is shared is given to a test as if it
were new: a server without conversations and without answers that are being written, a window that remembers nothing.
What a test cannot give back (a restart, options, a clock of its own) it starts for itself.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Response,
    ViewportSize,
    async_playwright,
    expect,
)

from tests.e2e.app_process import ROOT, AppProcess, running_app
from ui.screenshots import CHROMIUM_FLAGS, find_chromium

DESKTOP: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
PATIENCE_MS = 60_000

expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a browser run in its event loop."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.asyncio(loop_scope="package"), append=False)


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


@pytest.fixture(scope="package")
def scripted_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    """The app with scripted answers; `fake_server` is this one without conversations."""
    with running_fake_app(tmp_path_factory.mktemp("scripted")) as app:
        yield app


@pytest.fixture(scope="package")
def model_app(
    tmp_path_factory: pytest.TempPathFactory, builtin_model_path: Path
) -> Iterator[AppProcess]:
    """The app with the built-in model; `model_server` is this one without conversations."""
    with running_app(tmp_path_factory.mktemp("model"), "--num-blocks", "2048") as app:
        yield app


@pytest.fixture(scope="package")
def exact_app(
    tmp_path_factory: pytest.TempPathFactory, builtin_model_path: Path
) -> Iterator[AppProcess]:
    """The app with the built-in model in float32."""
    options = ("--num-blocks", "1024", "--dtype", "float32")
    with running_app(tmp_path_factory.mktemp("exact"), *options) as app:
        yield app


@pytest.fixture
def fake_server(scripted_app: AppProcess) -> AppProcess:
    """A running app with scripted answers and without conversations, for what only those can show."""
    scripted_app.clear()
    return scripted_app


@pytest.fixture
def model_server(model_app: AppProcess) -> AppProcess:
    """A running app with the built-in model and without conversations."""
    model_app.clear()
    return model_app


@pytest.fixture(params=["fake_server", pytest.param("model_server", marks=pytest.mark.model)])
def server(request: pytest.FixtureRequest) -> AppProcess:
    """A running app without conversations: one with scripted answers, then one with the built-in model."""
    return request.getfixturevalue(request.param)


@pytest_asyncio.fixture(loop_scope="package", scope="package")
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


@pytest_asyncio.fixture(loop_scope="package", autouse=True)
async def no_task_outlives_its_test() -> AsyncIterator[None]:
    """All browser tests run in one event loop: what one leaves running there would go on in the next."""
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() - before == {asyncio.current_task()}


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def desktop(browser: Browser) -> AsyncIterator[BrowserContext]:
    """What the desktop windows of all tests share: the files of the page that have been loaded once."""
    async with await browser.new_context(viewport=DESKTOP) as context:
        yield context


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def handset(browser: Browser) -> AsyncIterator[BrowserContext]:
    """The same of the phones' windows."""
    async with await browser.new_context(viewport=PHONE, is_mobile=True, has_touch=True) as context:
        yield context


@pytest_asyncio.fixture(loop_scope="package")
async def page(desktop: BrowserContext) -> AsyncIterator[Page]:
    """A desktop window of its own; the test fails when the page has complained."""
    async with window_of(desktop) as window:
        yield window


@pytest_asyncio.fixture(loop_scope="package")
async def phone(handset: BrowserContext) -> AsyncIterator[Page]:
    """A phone's window, with touch."""
    async with window_of(handset) as window:
        yield window


@asynccontextmanager
async def window_of(context: BrowserContext) -> AsyncIterator[Page]:
    """A window that must not complain. At its end all windows of `context` close, and what they stored is forgotten."""
    if not context.pages:
        await context.new_page()
    window = await context.new_page()
    window.set_default_timeout(PATIENCE_MS)
    complaints = Complaints(window)
    yield window
    await forget(context)
    assert complaints.lines == []


async def forget(context: BrowserContext) -> None:
    """Close all windows but the first, which is blank; then remove what they stored: a closing page may still write."""
    blank, *windows = context.pages
    for window in windows:
        await window.close()
    devtools = await context.new_cdp_session(blank)
    await devtools.send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
    await devtools.detach()
