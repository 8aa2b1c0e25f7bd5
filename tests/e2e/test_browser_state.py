"""What the page says of the server's state, in a real browser against a scripted socket."""

import json
import re

import pytest
from playwright.async_api import Page, WebSocketRoute, expect

from tests.e2e.app_process import AppProcess

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
READY = {"type": "ready", "protocol": 1, "model": "scripted", "max_model_len": 2048}


async def open_loading(page: Page, server: AppProcess) -> WebSocketRoute:
    """The page of a server whose model loads: the server's end of its socket."""
    ends: list[WebSocketRoute] = []
    await page.route_web_socket(re.compile("/ws/chat"), lambda end: ends.append(end))
    await page.goto(server.url)
    await page.get_by_label("Message", exact=True).wait_for()
    say(ends[0], {"type": "loading", "stage": "compiling", "fraction": 0})
    return ends[0]


def say(end: WebSocketRoute, frame: dict) -> None:
    """Send `frame` as the server."""
    end.send(json.dumps(frame))


async def test_a_stage_without_a_fraction_moves_and_counts_seconds(
    page: Page, fake_server: AppProcess
) -> None:
    end = await open_loading(page, fake_server)
    banner = page.locator(".pt-banner")
    bar = banner.locator("progress")
    await expect(banner).to_contain_text("compiling")
    await expect(bar).not_to_have_attribute("value", re.compile(""))
    await expect(bar).to_have_css("animation-name", "pt-march")
    await expect(banner.locator(".pt-elapsed")).to_have_text(re.compile(r"^[1-9]\d* s$"))
    await page.emulate_media(reduced_motion="reduce")
    await expect(bar).to_have_css("animation-name", "none")
    say(end, {"type": "loading", "stage": "reading", "fraction": 0.5})
    await expect(bar).to_have_js_property("value", 0.5)
    await expect(banner.locator(".pt-elapsed")).to_be_hidden()
    say(end, READY)
    await expect(banner).to_be_hidden()
