"""Several answers in a real browser: how many, at which temperatures, and which one goes on."""

import asyncio

import pytest
from playwright.async_api import Page, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import ask_for, ask_three, frames_of, open_page, send, stop, text_grows
from tests.e2e.test_browser_continue import select_words

pytestmark = pytest.mark.browser


async def test_the_menu_asks_for_five_and_for_different_temperatures(
    page: Page, fake_server: AppProcess
) -> None:
    sent = frames_of(page)
    await open_page(page, fake_server)
    await send(page, "hello")
    await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(1)
    more = page.get_by_role("button", name="More for this answer")
    await more.focus()
    await page.keyboard.press("Enter")
    menu = page.get_by_role("menu")
    await expect(menu.get_by_role("menuitem").first).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(menu).to_have_count(0)
    await expect(more).to_be_focused()
    await more.click()
    await menu.get_by_role("menuitem", name="×5").click()
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(5)
    await page.keyboard.press("5")
    await expect(page.locator(".pt-card")).to_have_count(0)
    await more.click()
    await menu.get_by_role("menuitem", name="Different temperatures").click()
    dialog = page.get_by_role("dialog", name="Different temperatures")
    await dialog.get_by_label("How many answers").select_option("2")
    await dialog.get_by_label("Answer A").fill("0")
    await dialog.get_by_label("Answer B").fill("1.7")
    await dialog.get_by_role("button", name="Regenerate").click()
    cards = page.locator(".pt-card")
    await expect(cards).to_have_count(2)
    await expect(cards.nth(0).locator("header")).to_contain_text("T 0")
    await expect(cards.nth(1).locator("header")).to_contain_text("T 1.7")
    five, two = [frame for frame in sent if frame["type"] == "regenerate"]
    assert five["n"] == 5
    assert (two["n"], two["sampling"]) == (2, {"temperatures": [0, 1.7]})


async def test_the_composer_asks_for_as_many_as_were_chosen(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    sends = page.locator(".pt-send")
    await expect(sends).to_have_accessible_name("Send")
    await ask_for(page, 2)
    await page.reload()
    await expect(page.get_by_role("button", name="2 answers", exact=True)).to_be_visible()
    await expect(sends).to_have_accessible_name("Send for 2 answers")
    await expect(sends).to_have_text("×2")
    await send(page, "hello")
    await expect(page.locator(".pt-card")).to_have_count(2)


async def test_the_number_of_answers_is_the_chats_own_like_its_other_settings(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await page.get_by_role("tab", name="Settings").click()
    default = page.get_by_label("number input for Answers")
    await default.fill("2")
    await page.keyboard.press("Tab")
    await page.get_by_role("tab", name="Chat").click()
    two, three = (page.get_by_role("button", name=f"{n} answers", exact=True) for n in (2, 3))
    await expect(two).to_be_visible()
    await ask_for(page, 3)
    await send(page, "hello")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    identity = page.url.rpartition("#")[2]
    await expect(three).to_be_visible()
    tree = await asyncio.to_thread(fake_server.get, f"/api/conversations/{identity}")
    assert tree["conversation"]["sampling"] == {"n": 3}
    await page.locator(".pt-new").click()
    await expect(two).to_be_visible()
    await page.get_by_role("tab", name="Settings").click()
    await expect(default).to_have_value("2")


async def test_answers_beside_each_other_have_letters_and_versions_numbers(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await send(page, "hello")
    await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(1)
    await page.get_by_role("button", name="Regenerate ×3").click()
    cards = page.locator(".pt-card")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    await expect(cards.locator("h3")).to_have_text(["Answer A", "Answer B", "Answer C"])
    await expect(page.locator(".pt-hint").last).to_have_text(
        "Press 1–3 to pick. A new message continues answer A."
    )
    await page.locator(".pt-scroll").focus()
    await page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    await expect(dialog.locator("dt").nth(3)).to_have_text("1–3")
    await page.keyboard.press("Escape")
    await page.keyboard.press("4")
    await expect(cards).to_have_count(3)
    await page.keyboard.press("2")
    await expect(cards).to_have_count(0)
    await expect(page.locator(".pt-assistant .pt-count")).to_have_text("3/4")
    await expect(page.locator(".pt-assistant .pt-prose")).to_contain_text("answer1-0")


async def test_a_conversation_with_a_number_of_its_own_keeps_what_is_chosen_in_it(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await send(page, "hello")
    await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(1)
    await page.get_by_role("button", name="Settings of this conversation").click()
    await page.get_by_role("dialog").get_by_label("Answers").fill("2")
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_role("button", name="2 answers", exact=True)).to_be_visible()
    await ask_for(page, 4)
    identity = page.url.rpartition("#")[2]
    await page.locator(".pt-new").click()
    await expect(page.get_by_role("button", name="1 answer", exact=True)).to_be_visible()
    await page.go_back()
    await expect(page.get_by_role("button", name="4 answers", exact=True)).to_be_visible()
    tree = await asyncio.to_thread(fake_server.get, f"/api/conversations/{identity}")
    assert tree["conversation"]["sampling"] == {"n": 4}


async def test_a_message_continues_the_answer_that_was_touched_last(
    page: Page, fake_server: AppProcess
) -> None:
    cards = await ask_three(page, fake_server, "hello")
    hint = page.locator(".pt-candidates .pt-hint").last
    await expect(hint).to_contain_text("continues answer A")
    await cards.nth(0).locator(".pt-card-body").focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await expect(cards.nth(2)).to_have_attribute("aria-current", "true")
    await expect(cards.nth(0)).not_to_have_attribute("aria-current", "true")
    await expect(hint).to_contain_text("continues answer C")
    await ask_for(page, 1)
    await send(page, "go on")
    await expect(page.locator(".pt-message")).to_have_count(4)
    await expect(page.locator(".pt-assistant").first).to_contain_text("answer2-0")
    await expect(page.locator(".pt-assistant").first.locator(".pt-count")).to_have_text("3/3")


async def test_on_a_phone_the_answer_in_sight_is_the_one_that_goes_on(
    phone: Page, fake_server: AppProcess
) -> None:
    await ask_three(phone, fake_server, "hello")
    await phone.locator(".pt-cards").evaluate("(row) => row.scrollTo(row.scrollWidth, 0)")
    await expect(phone.locator(".pt-candidates .pt-hint").last).to_contain_text(
        "continues answer C"
    )
    await send(phone, "go on")
    await expect(phone.locator(".pt-assistant").first).to_contain_text("answer2-0")


async def test_an_answer_cut_short_is_continued_from_its_card(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask_for(page, 3)
    await send(page, "a long one")
    cards = page.locator(".pt-card")
    await text_grows(cards.nth(1).locator(".pt-prose"))
    await page.get_by_role("button", name="Stop answer B").click()
    await expect(cards.nth(1)).to_have_attribute("data-status", "stopped")
    await expect(cards.nth(0)).to_have_attribute("data-status", "generating")
    await stop(page)
    kept = await cards.nth(1).locator(".pt-prose").inner_text()
    await page.get_by_role("button", name="Continue answer B").click()
    await expect(cards).to_have_count(0)
    answer = page.locator(".pt-assistant .pt-prose")
    await expect(answer).to_contain_text(kept.strip())
    await text_grows(answer)
    await stop(page)


async def test_a_selection_in_a_card_is_continued(page: Page, fake_server: AppProcess) -> None:
    cards = await ask_three(page, fake_server, "hello")
    prose = await cards.nth(1).locator(".pt-prose").element_handle()
    await select_words(page, "answer1-3", prose)
    bar = page.get_by_role("toolbar", name="Continue from here")
    await bar.get_by_role("button", name="Continue from here", exact=True).click()
    await expect(cards).to_have_count(0)
    answer = page.locator(".pt-assistant .pt-prose")
    await expect(answer).to_contain_text("answer1-2 answer1-3answer0-0")


async def test_a_number_that_is_no_answers_is_told(page: Page, fake_server: AppProcess) -> None:
    await ask_three(page, fake_server, "hello")
    status, box = page.locator(".pt-status"), page.get_by_label("Message", exact=True)
    await page.locator(".pt-scroll").focus()
    await page.keyboard.press("7")
    await expect(status).to_have_text("There is no answer 7 here. Press 1–3 to pick.")
    await expect(page.locator(".pt-card")).to_have_count(3)
    await page.evaluate("Pageturn.say('')")
    await box.focus()
    await page.keyboard.type("7 dwarfs")
    await expect(box).to_have_value("7 dwarfs")
    await expect(status).to_have_text("")
