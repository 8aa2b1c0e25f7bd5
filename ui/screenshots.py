"""Pictures of the real page: `python -m ui.screenshots [--url URL] [--out docs/img]`.

Drives the page with Playwright and a Chromium that is already installed (`CHROMIUM`, else `chromium` on the path):
chat, candidates and dashboard, each wide, wide and dark, and on a phone. Without `--url` it starts the app on a free
port with a data folder of its own beside the model's, and ends it afterwards. Everything in the pictures is computed
by the model that runs.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

CHROMIUM_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ROOT = Path(__file__).resolve().parent.parent
READY_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_MS = 300_000
REQUESTS_INTERVAL_MS = 700
QUESTION = "Give me three tips for writing a good letter, as a numbered list."
FOLLOW_UP = "Describe a quiet morning in a garden by the sea, in eight long paragraphs."
LONG_QUESTION = (
    "Tell the whole story of a lighthouse keeper and her friends, in twelve long chapters."
)
WIDE = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}


def find_chromium() -> str | None:
    """Path of the browser to drive."""
    return (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )


@contextmanager
def running_app() -> Iterator[str]:
    """Start the app with an empty database; yields its address once the model is ready."""
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite+aiosqlite:///{folder}/pageturn.db"
        command = [sys.executable, str(ROOT / "app.py"), "--port", "0", "--database-url", database]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            yield _wait_until_ready(process)
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_until_ready(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None, "the app's output is a pipe"
    for line in process.stdout:
        _, found, address = line.partition("Pageturn is at ")
        if found:
            return _wait_for_health(address.split()[0])
    raise SystemExit("the app ended before it was ready")


def _wait_for_health(url: str) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return url
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.2)
    raise SystemExit(f"{url} was not ready after {READY_TIMEOUT_S:.0f} s")


class Photographer:
    """Takes the three subjects with one window's size and colours."""

    def __init__(self, page: Page, out: Path, name: str) -> None:
        self.page, self.out, self.name = page, out, name

    async def shoot(self, subject: str) -> None:
        """Write `<subject>-<name>.png`."""
        path = self.out / f"{subject}-{self.name}.png"
        await self.page.screenshot(path=path, animations="disabled")
        print(path)

    async def ask(self, text: str) -> None:
        """Send a message and wait for the whole answer."""
        answers = self.page.locator(".pt-assistant[data-status=done]")
        before = await answers.count()
        await self.page.get_by_label("Message", exact=True).fill(text)
        await self.page.keyboard.press("Enter")
        await answers.nth(before).wait_for(timeout=ANSWER_TIMEOUT_MS)
        await self.page.locator(".pt-send").wait_for(timeout=ANSWER_TIMEOUT_MS)

    async def chat(self) -> None:
        """A finished answer."""
        await self.ask(QUESTION)
        await self.shoot("chat")

    async def candidates(self) -> None:
        """Three answers while they stream, far enough to be read."""
        await self.ask(FOLLOW_UP)
        await self.page.get_by_role("button", name="Regenerate ×3").last.click()
        await self.page.wait_for_function(
            "() => { const cards = [...document.querySelectorAll('.pt-card')]; return cards.length === 3"
            " && cards.every((card) => card.innerText.length > 400 || card.dataset.status === 'done'); }",
            timeout=ANSWER_TIMEOUT_MS,
        )
        await self.page.wait_for_timeout(REQUESTS_INTERVAL_MS)
        await self.shoot("candidates")
        await self.page.keyboard.press("Escape")
        await self.page.locator(".pt-send").wait_for()

    async def dashboard(self) -> None:
        """The engine at work on three long answers."""
        await self.page.get_by_role("button", name="1 answer", exact=True).click()
        await self.page.get_by_role("menuitemradio", name="3 answers").click()
        await self.page.get_by_label("Message", exact=True).fill(LONG_QUESTION)
        await self.page.keyboard.press("Enter")
        await self.page.locator(".pt-card").nth(2).wait_for()
        await self.page.get_by_role("tab", name="Dashboard").click()
        await self.page.wait_for_function(
            "() => document.querySelector('[data-tile=in_use] dd').innerText !== '–'"
        )
        await self.page.wait_for_timeout(1_500)
        await self.shoot("dashboard")
        await self.page.get_by_role("tab", name="Chat").click()
        await self.page.keyboard.press("Escape")
        await self.page.locator(".pt-send").wait_for()


async def take(browser: Browser, url: str, out: Path, name: str, **options: object) -> None:
    """All subjects in a window of its own."""
    context = await browser.new_context(reduced_motion="reduce", **options)  # pyright: ignore[reportArgumentType]
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_selector("[data-phase=ready]", state="attached", timeout=ANSWER_TIMEOUT_MS)
    photographer = Photographer(page, out, name)
    await photographer.chat()
    await photographer.candidates()
    await photographer.dashboard()
    await context.close()


async def take_all(url: str, out: Path) -> None:
    """Wide, dark and phone."""
    out.mkdir(parents=True, exist_ok=True)
    executable = find_chromium()
    if executable is None:
        raise SystemExit("no Chromium: install Debian's `chromium`, or name yours in CHROMIUM")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable, args=list(CHROMIUM_FLAGS)
        )
        await take(browser, url, out, "wide", viewport=WIDE)
        await take(browser, url, out, "dark", viewport=WIDE, color_scheme="dark")
        await take(
            browser,
            url,
            out,
            "phone",
            viewport=PHONE,
            device_scale_factor=2,
            is_mobile=True,
            has_touch=True,
        )
        await browser.close()


def main() -> None:
    """Parse options and take all pictures."""
    parser = argparse.ArgumentParser(description="take pictures of the page")
    parser.add_argument("--url", help="a running app; default: start one")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img")
    options = parser.parse_args()
    if options.url:
        asyncio.run(take_all(options.url, options.out))
        return
    with running_app() as url:
        asyncio.run(take_all(url, options.out))


if __name__ == "__main__":
    main()
