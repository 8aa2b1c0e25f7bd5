"""What the page says of its model, in a real browser: what it is, what to expect, where another is chosen."""

import pytest
from playwright.async_api import Page, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import open_page

pytestmark = pytest.mark.browser


async def test_an_empty_page_names_the_model_and_leads_to_what_it_is(
    page: Page, server: AppProcess
) -> None:
    told = server.get("/api/stats")["model"]
    await open_page(page, server)
    line = page.locator(".pt-empty .pt-model-line")
    await expect(line).to_contain_text(f"{told['model_name']} answers, a very small model")
    await line.get_by_role("button", name="About this model").click()
    dialog = page.get_by_role("dialog", name=told["model_name"])
    await expect(dialog).to_contain_text("very small")
    await expect(dialog).to_contain_text(f"{told['max_model_len']:,} tokens")
    await expect(dialog.locator("pre")).to_contain_text("--model")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)


async def test_it_is_found_in_the_sidebar_and_in_the_settings(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    dialog = page.get_by_role("dialog", name="fake")
    await page.locator(".pt-foot-state").focus()
    await page.keyboard.press("Enter")
    await expect(dialog).to_be_visible()
    await page.keyboard.press("Escape")
    await page.get_by_role("tab", name="Settings").click()
    await expect(page.locator(".pt-model-place")).to_contain_text("fake · chosen when the app")
    await page.locator(".pt-model-place").get_by_role("button", name="About this model").click()
    await expect(dialog).to_be_visible()


async def test_on_a_phone_it_is_found_in_the_drawer(phone: Page, fake_server: AppProcess) -> None:
    await open_page(phone, fake_server)
    await phone.locator("#pt-sidebar .toggle-button").click()
    await phone.locator(".pt-foot-state").tap()
    dialog = phone.get_by_role("dialog", name="fake")
    await expect(dialog).to_be_visible()
    assert await phone.evaluate("document.documentElement.scrollWidth") == 390
