"""Messages sent while the connection is lost, in a real browser: they wait in sight, are sent, and are never lost."""

import asyncio
import re
from collections.abc import Callable

import pytest
from playwright.async_api import Page, WebSocketRoute, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import ask_for, open_page, send, start_long_answer, stop_button

pytestmark = pytest.mark.browser


class Cable:
    """What connects a page to the server; it can be cut, and then every try to reconnect fails until it is mended."""

    def __init__(self) -> None:
        self.is_cut = False
        self.ends: list[WebSocketRoute] = []

    async def join(self, end: WebSocketRoute) -> None:
        if self.is_cut:
            await end.close()
            return
        end.connect_to_server()
        self.ends.append(end)

    async def cut(self) -> None:
        self.is_cut = True
        for end in self.ends:
            await end.close()

    def mend(self) -> None:
        self.is_cut = False


async def with_cable(page: Page) -> Cable:
    cable = Cable()
    await page.route_web_socket(re.compile("/ws/chat"), cable.join)
    return cable


async def cut_off(page: Page, server: AppProcess) -> Cable:
    """A chat with an answer, whose connection is lost then."""
    cable = await with_cable(page)
    await open_page(page, server)
    await send(page, "before")
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    await cable.cut()
    await expect(page.locator(".pt-banner")).to_contain_text("Reconnecting")
    return cable


async def test_a_message_waits_for_the_connection_and_is_sent_once(
    page: Page, fake_server: AppProcess
) -> None:
    cable = await cut_off(page, fake_server)
    await send(page, "after")
    waiting = page.locator(".pt-pending")
    await expect(waiting).to_contain_text("after")
    await expect(waiting).to_contain_text("Will be sent when the connection is back.")
    cable.mend()
    await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(2)
    await expect(waiting).to_have_count(0)
    await expect(page.locator(".pt-user .pt-prose")).to_have_text(["before", "after"])
    await page.reload()
    await expect(page.locator(".pt-user .pt-prose")).to_have_text(["before", "after"])
    await expect(page.get_by_label("Message", exact=True)).to_have_value("")


async def test_a_message_that_waits_is_in_sight_behind_open_answers(
    page: Page, fake_server: AppProcess
) -> None:
    await page.set_viewport_size({"width": 1280, "height": 600})
    cable = await with_cable(page)
    await open_page(page, fake_server)
    await ask_for(page, 3)
    await send(page, "a quick long one")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    await cable.cut()
    await expect(page.locator(".pt-banner")).to_contain_text("Reconnecting")
    await send(page, "after")
    waiting = page.get_by_text("Will be sent when the connection is back.")
    await expect(waiting).to_be_in_viewport(ratio=1)


async def test_the_answer_that_was_being_written_comes_first(
    page: Page, fake_server: AppProcess
) -> None:
    cable = await with_cable(page)
    await start_long_answer(page, fake_server)
    await cable.cut()
    await expect(page.locator(".pt-banner")).to_contain_text("Reconnecting")
    await expect(stop_button(page)).to_be_hidden()
    await send(page, "next")
    waiting = page.locator(".pt-pending")
    await expect(waiting).to_contain_text("Will be sent when the connection is back.")
    cable.mend()
    await expect(waiting).to_contain_text("Will be sent when this answer is complete.")
    await stop_button(page).click()
    await expect(page.locator(".pt-assistant")).to_have_count(2)
    await expect(page.locator(".pt-assistant").first).to_have_attribute("data-status", "stopped")
    await expect(page.locator(".pt-user .pt-prose").last).to_have_text("next")


async def leave_by_reload(page: Page, cable: Cable) -> None:
    cable.mend()
    await page.reload()


async def leave_by_another_chat(page: Page, cable: Cable) -> None:
    await page.locator(".pt-new").click()
    await expect(page.get_by_label("Message", exact=True)).to_have_value("")
    await page.go_back()


@pytest.mark.parametrize("leave", [leave_by_reload, leave_by_another_chat])
async def test_a_message_that_waits_goes_back_to_its_draft_with_what_was_typed_since(
    page: Page,
    fake_server: AppProcess,
    leave: Callable[[Page, Cable], asyncio.Future[None]],
) -> None:
    cable = await cut_off(page, fake_server)
    await send(page, "waits")
    box = page.get_by_label("Message", exact=True)
    await box.press_sequentially("typed since")
    await leave(page, cable)
    await expect(box).to_have_value("waits\ntyped since")
    await expect(page.locator(".pt-pending")).to_have_count(0)
