"""The page in a real browser: what a person does, against the scripted engine and the built-in model alike."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import LONG, start_long_answer, stop, stop_button, text_grows

pytestmark = pytest.mark.browser


class TestPage:
    """Everything here holds with any engine."""

    async def test_an_answer_streams_stops_with_a_receipt_and_survives_a_reload(
        self, page: Page, server: AppProcess
    ) -> None:
        answer = await start_long_answer(page, server)
        await page.keyboard.press("Escape")
        await expect(page.locator(".pt-status")).to_have_text(
            re.compile(r"^\d+ blocks? freed in [\d.]+ ms$")
        )
        await expect(page.locator(".pt-assistant .pt-note")).to_have_text("Stopped")
        text = await answer.inner_text()
        await page.reload()
        await expect(page.locator(".pt-user .pt-prose")).to_have_text(LONG)
        await expect(page.locator(".pt-assistant .pt-prose")).to_have_text(
            text, use_inner_text=True
        )
        await expect(page).to_have_title(re.compile("Write a long story"))
        assert server.live_blocks() == 0

    async def test_a_reload_in_the_middle_goes_on_where_the_answer_is(
        self, page: Page, server: AppProcess
    ) -> None:
        await start_long_answer(page, server)
        await page.reload()
        await text_grows(page.locator(".pt-assistant .pt-prose"))
        await stop(page)

    async def test_three_answers_stream_side_by_side_and_one_is_picked(
        self, page: Page, server: AppProcess
    ) -> None:
        await start_long_answer(page, server)
        await stop(page)
        await page.get_by_role("button", name="Regenerate ×3").click()
        cards = page.locator(".pt-card")
        await expect(cards).to_have_count(3)
        for index in range(3):
            await text_grows(cards.nth(index).locator(".pt-prose"))
        # All three in one look: the transcript scrolls by itself between two.
        tops = await cards.evaluate_all(
            "(all) => all.map((card) => card.getBoundingClientRect().top)"
        )
        assert len(tops) == 3
        assert len(set(tops)) == 1
        await stop(page)
        usage = cards.nth(1).locator(".pt-usage")
        await expect(usage).to_have_text(re.compile(r"^[\d,]+ tokens · [\d.,]+ tokens/s$"))
        await expect(usage).to_have_attribute("title", re.compile(r"^shared \d+ blocks?"))
        await expect(cards.nth(1).locator("header")).to_have_text("Answer Bstopped")
        chosen = await cards.nth(1).locator(".pt-prose").inner_text()
        box = page.get_by_label("Message", exact=True)
        await box.focus()
        await expect(page.locator(".pt-by-key")).to_be_visible()
        await page.keyboard.type("a2")
        await expect(box).to_have_value("a2")
        await expect(page.locator(".pt-by-key")).to_be_hidden()
        await box.fill("")
        await page.keyboard.press("2")
        await expect(cards).to_have_count(0)
        answer = page.locator(".pt-assistant")
        await expect(answer).to_have_count(1)
        await expect(answer.locator(".pt-prose")).to_have_text(chosen, use_inner_text=True)
        await expect(answer.locator(".pt-count")).to_have_text("3/4")
        await expect(box).to_have_value("")

    async def test_versions_are_switched_and_the_focus_stays(
        self, page: Page, server: AppProcess
    ) -> None:
        await start_long_answer(page, server)
        await stop(page)
        first = await page.locator(".pt-assistant .pt-prose").inner_text()
        await page.get_by_role("button", name="Regenerate", exact=True).click()
        await expect(stop_button(page)).to_be_visible()
        await text_grows(page.locator(".pt-assistant .pt-prose"))
        await stop(page)
        await expect(page.locator(".pt-assistant .pt-count")).to_have_text("2/2")
        await page.get_by_role("button", name="Previous version").click()
        await expect(page.locator(".pt-assistant .pt-count")).to_have_text("1/2")
        await expect(page.locator(".pt-assistant .pt-prose")).to_have_text(
            first, use_inner_text=True
        )
        await expect(page.get_by_role("button", name="Previous version")).to_be_focused()

    async def test_an_edited_message_is_answered_anew_beside_the_old_one(
        self, page: Page, server: AppProcess
    ) -> None:
        await start_long_answer(page, server)
        await stop(page)
        await page.locator(".pt-user").hover()
        await page.get_by_role("button", name="Edit and resend").click()
        await page.get_by_label("Your message").fill("Another long story, please, with details.")
        await page.keyboard.press("Enter")
        await expect(page.locator(".pt-user .pt-prose")).to_have_text(
            "Another long story, please, with details."
        )
        await text_grows(page.locator(".pt-assistant .pt-prose"))
        await stop(page)
        await expect(page.locator(".pt-user .pt-count")).to_have_text("2/2")
        await page.locator(".pt-user").hover()
        versions = page.locator(".pt-user .pt-versions")
        await expect(versions.get_by_label("Previous version")).to_have_css("opacity", "1")
        await expect(versions.get_by_label("Next version")).to_have_css("opacity", "0.35")

    async def test_the_dashboard_moves_while_an_answer_streams(
        self, page: Page, server: AppProcess
    ) -> None:
        await start_long_answer(page, server)
        await page.get_by_role("tab", name="Dashboard").click()
        in_use = page.locator("[data-tile=in_use] dd").first
        await expect(in_use).to_have_text(re.compile(r"[1-9]"))
        generated = page.locator("[data-tile=speed] .pt-tile-note")
        before = await generated.inner_text()
        await expect(generated).not_to_have_text(before)
        await expect(page.locator("[data-tile=speed] dd").first).to_have_text(re.compile(r"[1-9]"))
        await expect(page.locator(".pt-dashboard tbody tr td").nth(1)).to_have_text("running")
        coloured = """(map) => {
          const { data } = map.getContext("2d").getImageData(0, 0, map.width, map.height);
          for (let i = 0; i < data.length; i += 4) {
            if (Math.max(data[i], data[i + 1], data[i + 2]) - Math.min(data[i], data[i + 1], data[i + 2]) > 60) return true;
          }
          return false;
        }"""
        handle = await page.locator(".pt-map").element_handle()
        await page.wait_for_function(coloured, arg=handle)
        await page.get_by_role("tab", name="Chat").click()
        await stop(page)
        await page.get_by_role("tab", name="Dashboard").click()
        await expect(page.locator("[data-tile=in_use] dd").first).to_have_text("0")
        await expect(page.locator(".pt-dashboard tbody tr").first).to_have_text("No live requests")

    async def test_a_phone_shows_cards_to_swipe_and_nothing_wider_than_itself(
        self, phone: Page, server: AppProcess
    ) -> None:
        await start_long_answer(phone, server)
        await stop(phone)
        await phone.get_by_role("button", name="Regenerate ×3").tap()
        await expect(phone.locator(".pt-card")).to_have_count(3)
        await text_grows(phone.locator(".pt-card .pt-prose").first)
        await stop(phone)
        width = await phone.evaluate("document.documentElement.scrollWidth")
        assert width == 390
        height = await phone.evaluate("document.documentElement.scrollHeight")
        assert height <= 844
        await expect(phone.get_by_label("Message", exact=True)).to_be_in_viewport()
        await phone.locator(".pt-cards").evaluate("(row) => row.scrollTo(row.scrollWidth, 0)")
        await expect(phone.locator(".pt-dots i").nth(2)).to_have_class("pt-on")
        for tab in ("Dashboard", "Settings"):
            await phone.get_by_role("tab", name=tab).tap()
            assert await phone.evaluate("document.documentElement.scrollWidth") == 390
