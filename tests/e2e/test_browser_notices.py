"""Notices in a real browser: what was deleted can be brought back for half a minute, whatever is told meanwhile."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Route, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import open_page
from tests.e2e.conftest import DESKTOP, window_of
from tests.e2e.test_browser_conversations import ask, open_menu

pytestmark = pytest.mark.browser


@pytest_asyncio.fixture(loop_scope="package")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A desktop window whose clock the test moves; all windows of a context have the same."""
    async with (
        await browser.new_context(viewport=DESKTOP) as context,
        window_of(context) as window,
    ):
        await window.clock.install()
        yield window


async def delete_open(page: Page) -> None:
    await open_menu(page, page.locator(".pt-conversation.pt-open"))
    await page.get_by_role("menuitem", name="Delete").click()
    await expect(page.locator(".pt-conversation.pt-open")).to_have_count(0)
    await page.mouse.move(700, 400)


async def ask_new(page: Page, text: str) -> None:
    await page.locator(".pt-new").click()
    await ask(page, text)


def notice(page: Page) -> Locator:
    return page.locator(".pt-toast")


async def test_an_undo_stays_for_half_a_minute_and_longer_while_it_is_pointed_at(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask(page, "deleted and pointed at")
    await delete_open(page)
    await page.clock.fast_forward(29_000)
    await expect(notice(page)).to_contain_text("“deleted and pointed at” deleted")
    await notice(page).hover()
    await page.clock.fast_forward(10_000)
    await expect(notice(page)).to_have_count(1)
    await page.mouse.move(700, 400)
    await page.clock.fast_forward(4_000)
    await expect(notice(page)).to_have_count(0)


async def test_undoing_opens_again_what_every_window_had_left(
    page: Page, fake_server: AppProcess
) -> None:
    """The socket may tell that a conversation is gone before the answer to its deletion comes."""

    async def after_all_have_left(route: Route) -> None:
        if route.request.method == "DELETE":
            await page.evaluate("Pageturn.chat.open(null)")
        await route.continue_()

    await page.route("**/api/conversations/*", after_all_have_left)
    await open_page(page, fake_server)
    await ask(page, "soon back")
    await delete_open(page)
    await page.get_by_role("button", name="Undo").click()
    await expect(page.locator(".pt-user .pt-prose")).to_have_text("soon back")


async def test_a_newer_notice_takes_no_undo_away(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    await ask(page, "deleted first")
    await ask_new(page, "deleted second")
    await delete_open(page)
    await page.locator(".pt-conversation", has_text="deleted first").click()
    await delete_open(page)
    await page.evaluate("Pageturn.toast('Settings saved')")
    await expect(notice(page)).to_have_text("Settings saved")
    await page.clock.fast_forward(4_000)
    await expect(notice(page)).to_contain_text("“deleted first” deleted")
    await page.get_by_role("button", name="Undo").click()
    await expect(page.locator(".pt-user .pt-prose")).to_have_text("deleted first")
    await expect(notice(page)).to_contain_text("“deleted second” deleted")
    await page.mouse.move(700, 400)
    await page.evaluate("Pageturn.failureToast('Something failed')")
    await page.keyboard.press("Control+z")
    await expect(page.locator(".pt-user .pt-prose")).to_have_text("deleted second")
    await expect(notice(page)).to_have_text("Taken back: “deleted second” deleted")
    await page.clock.fast_forward(4_000)
    await expect(notice(page)).to_have_text("Something failed")
    await page.get_by_role("button", name="Dismiss").click()
    await expect(notice(page)).to_have_count(0)


async def test_what_is_told_of_a_conversation_goes_with_it_and_an_undo_of_a_deletion_stays(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask(page, "soon deleted")
    await delete_open(page)
    await ask_new(page, "has a seed")

    async def use_seed() -> None:
        await page.locator(".pt-meta").click()
        await page.get_by_role("button", name="use it again").click()
        await expect(notice(page)).to_contain_text("is used for the next answers")
        await page.locator(".pt-meta").click()

    await use_seed()
    await page.get_by_role("tab", name="Dashboard").click()
    await expect(notice(page)).to_contain_text("“soon deleted” deleted")
    await page.get_by_role("tab", name="Chat").click()
    await use_seed()
    await page.evaluate("Pageturn.failureToast('Something failed')")
    await page.locator(".pt-new").click()
    await page.get_by_role("button", name="Dismiss").click()
    await expect(notice(page)).to_contain_text("“soon deleted” deleted")
    await page.get_by_role("button", name="Undo").click()
    await expect(page.locator(".pt-user .pt-prose")).to_have_text("soon deleted")


async def test_an_undo_whose_time_is_over_does_not_come_back(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask(page, "deleted for good")
    await delete_open(page)
    await page.clock.fast_forward(26_000)
    await page.evaluate("Pageturn.failureToast('Something failed')")
    await page.clock.fast_forward(5_000)
    await page.keyboard.press("Control+z")
    await expect(notice(page)).to_contain_text("Something failed")
    await page.get_by_role("button", name="Dismiss").click()
    await expect(notice(page)).to_have_count(0)
    await expect(page.locator(".pt-conversation", has_text="deleted for good")).to_have_count(0)
