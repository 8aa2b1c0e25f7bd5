"""What sharing saves, in a real browser: the line under several answers, while they are written and after."""

import asyncio
import json
import re

import pytest
from playwright.async_api import Page, expect
from websockets.asyncio.client import connect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import ask_for, ask_three, frames_to, open_page, send, stop, text_grows
from tests.e2e.test_browser_accessibility import assert_clean

pytestmark = pytest.mark.browser


async def test_what_sharing_saves_is_told_while_answers_are_written_and_after(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask_for(page, 3)
    await send(page, "a long one")
    line = page.locator(".pt-savings")
    await expect(line).to_have_text("shared 4 blocks · private 2 · saved 8 (57%)")
    await expect(line).to_have_accessible_description(
        re.compile("the numbers now, while the answers are written")
    )
    await stop(page)
    await expect(line).to_have_accessible_description(
        re.compile("the numbers of the whole answers.$")
    )
    await expect(line).to_have_text(
        re.compile(r"^shared 4 blocks · private \d+ · saved 8 \(\d+%\)$")
    )
    said = await line.inner_text()
    await page.get_by_role("button", name="New chat").click()
    await expect(line).to_have_count(0)
    await page.go_back()
    await expect(line).to_have_text(said)
    await page.reload()
    await expect(line).to_have_text(said)


async def test_what_the_numbers_mean_is_told_on_pointing_on_focus_and_to_screen_readers(
    page: Page, fake_server: AppProcess
) -> None:
    cards = await ask_three(page, fake_server, "a quick long one")
    await expect(cards).to_have_count(3)
    line, note = page.locator(".pt-savings"), page.get_by_role("tooltip")
    await expect(line).to_have_accessible_description(
        re.compile("^All 3 answers go on from the same text.* 4 blocks, shared")
    )
    await expect(note).to_be_hidden()
    await line.hover()
    await expect(note).to_contain_text("With a copy for each they would need 8 blocks more")
    await assert_clean(page, "what the numbers mean")
    box = await note.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 40, box["y"] + 40, steps=4)
    await expect(note).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(note).to_be_hidden()
    await line.focus()
    await expect(note).to_be_visible()
    await page.keyboard.press("Tab")
    await expect(note).to_be_hidden()


async def test_what_slides_under_a_resting_mouse_explains_nothing(
    page: Page, fake_server: AppProcess
) -> None:
    await ask_three(page, fake_server, "a quick long one")
    line, note = page.locator(".pt-savings"), page.get_by_role("tooltip")
    box = await line.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 30, box["y"] + 60)
    await page.evaluate("document.querySelector('.pt-savings').style.marginTop = '50px'")
    await line.evaluate("(node) => new Promise((done) => setTimeout(done, 300, node.offsetTop))")
    await expect(note).to_be_hidden()


async def test_a_move_of_the_page_under_a_resting_mouse_is_no_move_of_the_mouse(
    page: Page, fake_server: AppProcess
) -> None:
    """Browsers tell of a pointer that moves, by nothing, when what is under it has moved."""
    await ask_three(page, fake_server, "a quick long one")
    line, note = page.locator(".pt-savings"), page.get_by_role("tooltip")
    tell = """(line, by) => line.dispatchEvent(new PointerEvent("pointermove",
      { pointerType: "mouse", movementX: by, movementY: 0, bubbles: true }))"""
    await line.evaluate(tell, 0)
    await expect(note).to_be_hidden()
    await line.evaluate(tell, 1)
    await expect(note).to_be_visible()


async def test_esc_closes_what_explains_and_stops_the_answers(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask_for(page, 3)
    await send(page, "a long one")
    line, note = page.locator(".pt-savings"), page.get_by_role("tooltip")
    await line.hover()
    await expect(note).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(note).to_be_hidden()
    await expect(page.locator(".pt-card[data-status=stopped]")).to_have_count(3)


async def test_on_a_phone_a_tap_tells_what_the_numbers_mean(
    phone: Page, fake_server: AppProcess
) -> None:
    await ask_three(phone, fake_server, "a quick long one")
    note = phone.get_by_role("tooltip")
    await phone.locator(".pt-savings").tap()
    await expect(note).to_be_in_viewport(ratio=1)
    await phone.locator(".pt-card-body").first.tap()
    await expect(note).to_be_hidden()


async def test_when_one_answer_is_left_the_line_tells_of_all_together(
    page: Page, fake_server: AppProcess
) -> None:
    """The engine tells on of the last one, which shares nothing: that is not what the line is about."""
    await page.add_init_script(
        """localStorage.setItem("pageturn.sampling", '{"max_tokens": 150}')"""
    )
    told = await frames_to(page, "requests")
    await open_page(page, fake_server)
    await ask_for(page, 3)
    await send(page, "a long one")
    line = page.locator(".pt-savings")
    await expect(line).to_contain_text("saved 8 (57%)")
    for place, letter in ((0, "A"), (2, "C")):
        await page.get_by_role("button", name=f"Stop answer {letter}").click()
        card = page.locator(".pt-card").nth(place)
        await expect(card).to_have_attribute("data-status", "stopped")
    together = "shared 4 blocks · private 2 · saved 8 (57%)"
    await expect(line).to_have_text(together)
    while [item["blocks_shared"] for item in (await told.get())["items"]] != [0]:
        pass
    await text_grows(page.locator(".pt-card .pt-prose").nth(1))
    assert await line.inner_text() == together
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(1)
    await expect(line).to_have_accessible_description(re.compile("^All 3 answers"))
    numbers = re.fullmatch(
        r"shared 4 blocks · private (\d+) · saved 8 \(\d+%\)", await line.inner_text()
    )
    assert numbers, "the two that were stopped count, and the long one with all of its blocks"
    assert int(numbers[1]) > 2


async def test_another_chat_does_not_hide_what_sharing_saves(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask_for(page, 3)
    async with connect(fake_server.socket_url) as other:
        await other.send(json.dumps({"type": "send", "content": "another long one"}))
        async for told in other:
            if json.loads(told)["type"] == "delta":
                break
        await send(page, "a long one")
        await expect(page.locator(".pt-savings")).to_contain_text("saved 8 (57%)")
        assert len((await asyncio.to_thread(fake_server.get, "/api/requests"))["requests"]) == 2
        await stop(page)
