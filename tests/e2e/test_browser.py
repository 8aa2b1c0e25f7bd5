"""The page in a real browser: what a person does, against the scripted engine and the built-in model alike."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.conftest import DESKTOP, running_fake_app

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

LONG = "Write a long story about a lighthouse, with many details."
ANSWER_MS = 120_000


async def open_page(page: Page, server: AppProcess) -> None:
    await page.goto(server.url)
    await page.wait_for_selector("[data-phase=ready]", state="attached")
    await page.get_by_label("Message", exact=True).wait_for()


async def send(page: Page, text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


def stop_button(page: Page) -> Locator:
    return page.locator(".pt-stop")


async def text_grows(part: Locator) -> None:
    """Wait for text, then for another."""
    await expect(part).to_have_text(re.compile(r"\S"), timeout=ANSWER_MS)
    before = await part.inner_text()
    await expect(part).not_to_have_text(before, use_inner_text=True, timeout=ANSWER_MS)


async def start_long_answer(page: Page, server: AppProcess) -> Locator:
    """Send a message whose answer takes a while; returns once its text grows."""
    await open_page(page, server)
    await send(page, LONG)
    answer = page.locator(".pt-assistant .pt-prose").last
    await text_grows(answer)
    return answer


async def stop(page: Page) -> None:
    await stop_button(page).click()
    await expect(stop_button(page)).to_be_hidden()


class TestPage:
    """Everything here holds with any engine."""

    async def test_an_answer_streams_stops_with_a_receipt_and_survives_a_reload(
        self, page: Page, server: AppProcess
    ) -> None:
        answer = await start_long_answer(page, server)
        await page.keyboard.press("Escape")
        await expect(page.locator(".pt-status")).to_have_text(
            re.compile(r"Stopped · \d+ blocks? freed in [\d.]+ ms")
        )
        await expect(page.locator(".pt-assistant .pt-note")).to_have_text(
            re.compile(r"Stopped · \d+ blocks? freed")
        )
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
        boxes = [await cards.nth(index).bounding_box() for index in range(3)]
        assert len({box["y"] for box in boxes if box}) == 1
        await stop(page)
        await expect(cards.nth(1)).to_contain_text(
            re.compile(r"\d+ tokens.*shared \d+ blocks?", re.S)
        )
        chosen = await cards.nth(1).locator(".pt-prose").inner_text()
        await page.locator(".pt-scroll").focus()
        await page.keyboard.press("2")
        await expect(cards).to_have_count(0)
        answer = page.locator(".pt-assistant")
        await expect(answer).to_have_count(1)
        await expect(answer.locator(".pt-prose")).to_have_text(chosen, use_inner_text=True)
        await expect(answer.locator(".pt-count")).to_have_text("3/4")

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

    async def test_the_dashboard_moves_while_an_answer_streams(
        self, page: Page, server: AppProcess
    ) -> None:
        await start_long_answer(page, server)
        await page.get_by_role("tab", name="Dashboard").click()
        in_use = page.locator("[data-tile=in_use] dd").first
        await expect(in_use).to_have_text(re.compile(r"[1-9]"))
        generated = page.locator("[data-tile=tokens] dd").first
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
        await expect(page.locator(".pt-dashboard tbody")).to_have_text("No live requests")

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


class TestWords:
    """What a person types, and what a model says, with scripted answers."""

    async def test_a_draft_survives_a_reload_and_shift_enter_breaks_the_line(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        await open_page(page, fake_server)
        box = page.get_by_label("Message", exact=True)
        await box.press_sequentially("one")
        await page.keyboard.press("Shift+Enter")
        await box.press_sequentially("two")
        await page.reload()
        await expect(box).to_have_value("one\ntwo")
        await box.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(".pt-user .pt-prose")).to_have_text(
            "one\ntwo", use_inner_text=True
        )
        await expect(box).to_have_value("")
        await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
        await page.reload()
        await expect(page.locator(".pt-user .pt-prose")).to_have_text(
            "one\ntwo", use_inner_text=True
        )
        await expect(box).to_have_value("")

    async def test_what_is_typed_during_an_answer_waits_for_its_end(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        await start_long_answer(page, fake_server)
        box = page.get_by_label("Message", exact=True)
        await box.fill("later")
        await page.keyboard.press("Enter")
        await expect(box).to_have_value("later")
        await expect(page.locator(".pt-status")).to_contain_text("Wait for the answer")
        await stop(page)
        await box.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(".pt-user")).to_have_count(2)

    async def test_markdown_arrives_as_elements_and_money_as_prose(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        await open_page(page, fake_server)
        await send(page, "markdown")
        answer = page.locator(".pt-assistant")
        await expect(answer).to_have_attribute("data-status", "done")
        await expect(answer.locator("h4")).to_have_text("A heading")
        await expect(answer.locator(".pt-code code .hl-k").first).to_have_text("def")
        await expect(answer.locator("td.pt-right")).to_have_text("1")
        await expect(answer.locator(".pt-math")).to_have_text("x^2")
        await expect(answer).to_contain_text("It costs $5 or $10")

    async def test_a_hostile_answer_stays_text(self, page: Page, fake_server: AppProcess) -> None:
        await open_page(page, fake_server)
        await send(page, "hostile <img src=x onerror='window.hacked = 6'>")
        answer = page.locator(".pt-assistant")
        await expect(answer).to_have_attribute("data-status", "done")
        await expect(answer).to_contain_text("<script>window.hacked = 1</script>")
        await expect(page.locator(".pt-log img, .pt-log script")).to_have_count(0)
        assert await page.evaluate("window.hacked") is None

    async def test_three_answers_can_be_asked_for_at_once(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        await open_page(page, fake_server)
        await page.get_by_role("button", name="3 answers").click()
        await send(page, "a short one")
        cards = page.locator(".pt-card")
        await expect(cards).to_have_count(3)
        await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
        await expect(page.locator(".pt-candidates")).to_contain_text("continues answer 1")
        await page.get_by_role("button", name="3 answers").click()
        await send(page, "go on")
        await expect(cards).to_have_count(0)
        await expect(page.locator(".pt-message")).to_have_count(4)
        await expect(page.locator(".pt-assistant").first).to_contain_text("answer0-0")

    async def test_sampling_and_system_prompt_of_the_settings_reach_the_server(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        sent: list[dict] = []
        page.on(
            "websocket",
            lambda socket: socket.on("framesent", lambda data: sent.append(json.loads(data))),
        )
        await open_page(page, fake_server)
        await page.get_by_role("tab", name="Settings").click()
        await page.get_by_label("number input for Temperature").fill("0.3")
        await page.keyboard.press("Tab")
        await page.wait_for_function("localStorage.getItem('pageturn.sampling')?.includes('0.3')")
        await page.reload()
        await send(page, "hello")
        await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
        (frame,) = [frame for frame in sent if frame["type"] == "send"]
        assert frame["sampling"] == {"temperature": 0.3}
        await page.get_by_role("tab", name="Settings").click()
        await expect(page.get_by_label("number input for Temperature")).to_have_value("0.3")
        await page.get_by_label("System prompt").fill("Answer in rhymes.")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator(".pt-toast")).to_have_text("System prompt saved")
        identity = page.url.rpartition("#")[2]
        stored = await asyncio.to_thread(fake_server.get, f"/api/conversations/{identity}")
        assert stored["conversation"]["system_prompt"] == "Answer in rhymes."


class TestConversations:
    """The sidebar."""

    async def test_renamed_found_deleted_and_brought_back(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        await open_page(page, fake_server)
        await send(page, "the first of two")
        await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
        row = page.locator(".pt-conversation.pt-open")
        await row.hover()
        await row.get_by_role("button", name="Rename").click()
        await page.get_by_label("Title", exact=True).fill("Zebra crossing")
        await page.keyboard.press("Enter")
        await expect(row).to_contain_text("Zebra crossing")
        await page.get_by_label("Search conversations").fill("zebra")
        await expect(page.locator(".pt-conversation")).to_have_count(1)
        await page.get_by_label("Search conversations").fill("")
        await row.hover()
        await row.get_by_role("button", name="Delete").click()
        zebra = page.locator(".pt-conversation", has_text="Zebra crossing")
        await expect(zebra).to_have_count(0)
        await expect(page.locator(".pt-message")).to_have_count(0)
        await page.get_by_role("button", name="Undo").click()
        await expect(zebra).to_have_count(1)
        await expect(page.locator(".pt-user .pt-prose")).to_have_text("the first of two")

    async def test_a_second_window_sees_the_same_live(
        self, page: Page, browser: Browser, fake_server: AppProcess
    ) -> None:
        await start_long_answer(page, fake_server)
        context = await browser.new_context(viewport=DESKTOP)  # pyright: ignore[reportArgumentType]
        other = await context.new_page()
        await other.goto(page.url)
        await text_grows(other.locator(".pt-assistant .pt-prose"))
        await expect(other.locator(".pt-running").first).to_be_visible()
        await stop(other)
        await expect(stop_button(page)).to_be_hidden()
        await context.close()


async def test_a_restarted_server_is_noticed_and_nothing_typed_is_lost(
    browser: Browser, tmp_path: Path
) -> None:
    context = await browser.new_context(viewport=DESKTOP)  # pyright: ignore[reportArgumentType]
    page = await context.new_page()
    with running_fake_app(tmp_path) as app:
        port = app.port
        await open_page(page, app)
        await send(page, "before")
        await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    banner = page.locator(".pt-banner")
    await expect(banner).to_contain_text("Reconnecting")
    box = page.get_by_label("Message", exact=True)
    await box.fill("after")
    await box.press("Enter")
    await expect(box).to_have_value("after")
    with running_fake_app(tmp_path, port):
        await expect(banner).to_be_hidden()
        await box.press("Enter")
        await expect(page.locator(".pt-user")).to_have_count(2)
        await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(2)
        await context.close()
