"""axe-core finds nothing serious or critical in any view, in light and dark, wide and on a phone."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import LONG, ask_for, open_page, send, stop, stop_button
from tests.e2e.conftest import DESKTOP, PHONE

pytestmark = pytest.mark.browser
GRAVE = ("serious", "critical")
OPTIONS = {"resultTypes": ["violations"]}


async def assert_clean(page: Page, view: str) -> None:
    """No grave finding; the message names rule and elements."""
    results = await Axe().run(page, options=OPTIONS)
    grave = [
        f"{found['id']}: {[node['html'][:120] for node in found['nodes'][:3]]}"
        for found in results.response["violations"]
        if found["impact"] in GRAVE
    ]
    assert grave == [], view


@pytest_asyncio.fixture(
    loop_scope="package",
    params=[("wide", "light"), ("wide", "dark"), ("phone", "light"), ("phone", "dark")],
    ids="-".join,
)
async def window(request: pytest.FixtureRequest, browser: Browser) -> AsyncIterator[Page]:
    size, scheme = request.param
    phone = size == "phone"
    context = await browser.new_context(
        viewport=PHONE if phone else DESKTOP,
        is_mobile=phone,
        has_touch=phone,
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    yield await context.new_page()
    await context.close()


async def test_no_view_has_a_grave_fault(window: Page, fake_server: AppProcess) -> None:
    page = window
    await open_page(page, fake_server)
    await assert_clean(page, "an empty chat")
    await page.get_by_role("button", name="About this model").first.click()
    await assert_clean(page, "the model")
    await page.keyboard.press("Escape")
    await send(page, "quick markdown")
    answer = page.locator(".pt-assistant[data-status=done]")
    await expect(answer).to_have_count(1)
    await answer.locator("button.pt-meta").click()
    await assert_clean(page, "an answer with its facts")
    await page.get_by_role("button", name="More for this answer").click()
    await assert_clean(page, "a menu")
    await page.get_by_role("menuitem", name="Continue from a place").click()
    await page.keyboard.press("ArrowUp")
    await assert_clean(page, "a place to continue from")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="More for this answer").click()
    await page.get_by_role("menuitem", name="Different temperatures").click()
    await assert_clean(page, "temperatures")
    await page.get_by_role("button", name="Regenerate", exact=True).last.click()
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    await page.get_by_role("button", name="Compare").click()
    await page.locator(".pt-leaves").first.focus()
    await expect(page.locator(".pt-choices")).to_be_visible()
    await assert_clean(page, "candidates compared")
    await page.get_by_role("button", name="Settings of this conversation").click()
    await assert_clean(page, "settings of a conversation")
    await page.keyboard.press("Escape")
    await page.locator(".pt-scroll").focus()
    await page.keyboard.press("?")
    await assert_clean(page, "the list of keys")
    await page.keyboard.press("Escape")
    await send(page, "please stumble, " + window.url[-8:])
    await expect(
        page.locator(".pt-card[data-status=error], .pt-error, [data-status=error]").first
    ).to_be_visible()
    await assert_clean(page, "a failure")
    await page.get_by_role("button", name="Branches").click()
    await expect(page.locator(".pt-tree")).to_be_visible()
    await assert_clean(page, "the branches")
    await page.get_by_role("treeitem").nth(1).focus()
    await page.keyboard.press("Delete")
    await expect(page.locator(".pt-toast")).to_contain_text("deleted")
    await assert_clean(page, "a notice with an undo")
    await page.keyboard.press("Control+z")
    await page.keyboard.press("Escape")
    if page.viewport_size == PHONE:
        await page.locator("#pt-sidebar .toggle-button").click()
    await page.get_by_role("searchbox").fill("stumble")
    await expect(page.locator(".pt-snippet, mark").first).to_be_visible()
    await assert_clean(page, "what a search finds")
    await page.get_by_role("button", name="More for “").first.click()
    await assert_clean(page, "the menu of a conversation")
    await page.keyboard.press("Escape")
    await page.get_by_role("searchbox").fill("")
    if page.viewport_size == PHONE:
        await page.locator("#pt-sidebar .toggle-button").click()
    for tab in ("Dashboard", "Settings"):
        await page.get_by_role("tab", name=tab).click()
        await page.wait_for_function(
            f"document.querySelector('[role=tab][aria-selected=true]').textContent.includes('{tab}')"
        )
        if tab == "Settings":
            await page.get_by_label("Name of a preset").fill("Mine")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("button", name="Mine", exact=True)).to_be_visible()
        await assert_clean(page, tab)


async def test_the_first_tab_leads_to_the_message_box(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    await page.get_by_role("tab", name="Dashboard").click()
    await page.evaluate("document.activeElement.blur()")
    skip = page.get_by_role("link", name="Skip to the message box")
    await expect(skip).not_to_be_in_viewport()
    for _ in range(20):
        await page.keyboard.press("Shift+Tab")
        if await skip.evaluate("(link) => link === document.activeElement"):
            break
    await expect(skip).to_be_in_viewport()
    address = page.url
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Message", exact=True)).to_be_focused()
    assert page.url == address


async def test_the_sidebar_gives_way_in_a_window_that_became_narrow(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    search = page.get_by_label("Search conversations")
    await expect(search).to_be_in_viewport()
    await page.set_viewport_size({"width": 600, "height": 860})
    await expect(search).not_to_be_in_viewport()
    await page.set_viewport_size({"width": 1280, "height": 860})
    await expect(search).to_be_in_viewport()


async def test_on_a_phone_the_number_of_answers_is_whole_beside_a_seed(
    phone: Page, fake_server: AppProcess
) -> None:
    await open_page(phone, fake_server)
    await ask_for(phone, 3)
    await phone.evaluate("Pageturn.settings.useSeed(2 ** 53 - 1)")
    chip = phone.locator(".pt-chip")
    await expect(chip).to_be_visible()
    words = phone.locator(".pt-three > span > span").first
    await expect(words).to_have_text("3 answers")
    assert await words.evaluate("(node) => node.scrollWidth <= node.parentNode.clientWidth")
    box, row = await chip.bounding_box(), await phone.locator(".pt-composer-row").bounding_box()
    assert box is not None
    assert row is not None
    assert box["width"] > 40
    assert row["x"] + row["width"] <= 390
    await send(phone, LONG)
    stop_here = stop_button(phone)
    await expect(stop_here).to_be_visible()
    assert await stop_here.evaluate("(node) => node.scrollWidth <= node.clientWidth")
    assert await phone.evaluate("document.documentElement.scrollWidth") == 390
    await stop(phone)
