"""What a person does in the page, in a few verbs."""

import re

from playwright.async_api import Locator, Page, expect

from tests.e2e.app_process import AppProcess

LONG = "Write a long story about a lighthouse, with many details."
# Answers that do not end by themselves while a test still needs them.
ENDLESS = (
    """localStorage.setItem("pageturn.sampling", '{"ignore_eos": true, "max_tokens": 4000}')"""
)
ANSWER_MS = 120_000
MAP = "Pageturn.dashboard.map()"


async def open_page(page: Page, server: AppProcess) -> None:
    await page.goto(server.url)
    await page.wait_for_selector("[data-phase=ready]", state="attached")
    await page.get_by_label("Message", exact=True).wait_for()


async def send(page: Page, text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def ask_for(page: Page, count: int) -> None:
    """Let the messages to come get so many answers."""
    await page.get_by_role("button", name=re.compile(r"^\d answers?\b")).click()
    label = f"{count} answer{'' if count == 1 else 's'}"
    await page.get_by_role("menuitemradio", name=label, exact=True).click()


def stop_button(page: Page) -> Locator:
    return page.locator(".pt-stop")


async def text_grows(part: Locator) -> None:
    """Wait for text, then for another."""
    await expect(part).to_have_text(re.compile(r"\S"), timeout=ANSWER_MS)
    before = await part.inner_text()
    await expect(part).not_to_have_text(before, use_inner_text=True, timeout=ANSWER_MS)


async def start_long_answer(page: Page, server: AppProcess) -> Locator:
    """Send a message whose answer takes a while; returns once its text grows."""
    await page.add_init_script(ENDLESS)
    await open_page(page, server)
    await send(page, LONG)
    answer = page.locator(".pt-assistant .pt-prose").last
    await text_grows(answer)
    return answer


async def stop(page: Page) -> None:
    await stop_button(page).click()
    await expect(stop_button(page)).to_be_hidden()


async def open_dashboard(page: Page) -> None:
    await page.get_by_role("tab", name="Dashboard").click()
    await expect(page.locator("[data-tile=in_use] dd").first).to_have_text(re.compile(r"\d"))
    await page.wait_for_function(f"{MAP}?.cells.length > 0")
