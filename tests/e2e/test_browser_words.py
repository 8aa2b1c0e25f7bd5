"""The page in a real browser with scripted answers: what is typed, what is said, the list of conversations."""

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, WebSocketRoute, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import (
    ask_for,
    open_page,
    send,
    start_long_answer,
    stop,
    stop_button,
    text_grows,
)
from tests.e2e.conftest import DESKTOP, running_fake_app
from tests.e2e.fake_app import MARKDOWN

pytestmark = pytest.mark.browser


class Gate:
    """Between a page and the server: while it is closed nothing of the server comes through."""

    def __init__(self) -> None:
        self.is_closed = False
        self.held: list[tuple[WebSocketRoute, str | bytes]] = []

    def join(self, end: WebSocketRoute) -> None:
        end.connect_to_server().on_message(lambda message: self._take(end, message))

    def _take(self, end: WebSocketRoute, message: str | bytes) -> None:
        if self.is_closed:
            self.held.append((end, message))
        else:
            end.send(message)

    def close(self) -> None:
        self.is_closed = True

    def open(self) -> None:
        self.is_closed = False
        for end, message in self.held:
            end.send(message)


class TestWords:
    """What a person types, and what a model says, with scripted answers."""

    async def test_a_draft_survives_a_reload_and_shift_enter_breaks_the_line(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        await open_page(page, fake_server)
        box = page.get_by_label("Message", exact=True)
        example = page.locator(".pt-example").first
        proposed = await example.inner_text()
        await example.click()
        await page.reload()
        await expect(box).to_have_value(proposed)
        await box.fill("")
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
        await send(page, "quick markdown")
        answer = page.locator(".pt-assistant")
        await expect(answer).to_have_attribute("data-status", "done")
        await expect(answer.locator("h4")).to_have_text("A heading")
        await expect(answer.locator(".pt-code code .hl-k").first).to_have_text("def")
        await expect(answer.locator("td.pt-right")).to_have_text("1")
        await expect(answer.locator("math msup")).to_have_text("x2")
        done, to_do = (
            answer.get_by_role("img", name="done"),
            answer.get_by_role("img", name="to do"),
        )
        await expect(done).to_have_css("background-color", "rgb(79, 70, 229)")
        await expect(to_do).to_have_css("background-color", "rgba(0, 0, 0, 0)")
        link = answer.get_by_role("link", name="https://example.org")
        await expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
        drawn = "(all) => all.map((part) => part.getBoundingClientRect().bottom)"
        base, exponent = await answer.locator("math msup > *").evaluate_all(drawn)
        assert exponent < base
        await page.evaluate(
            "() => (navigator.clipboard.writeText = async (text) => (window.copied = text))"
        )
        await answer.get_by_role("button", name="Copy", exact=True).click()
        await page.wait_for_function("() => window.copied !== undefined")
        assert await page.evaluate("window.copied") == MARKDOWN
        await answer.get_by_role("button", name="Copy code").click()
        await page.wait_for_function("() => window.copied.startsWith('def answer')")
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
        await ask_for(page, 3)
        await send(page, "a short one")
        cards = page.locator(".pt-card")
        await expect(cards).to_have_count(3)
        await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
        await expect(page.locator(".pt-candidates")).to_contain_text("continues answer A")
        await ask_for(page, 1)
        await send(page, "go on")
        await expect(cards).to_have_count(0)
        await expect(page.locator(".pt-message")).to_have_count(4)
        await expect(page.locator(".pt-assistant").first).to_contain_text("answer0-0")

    async def test_finished_cards_stand_at_their_beginning_with_their_buttons_in_one_line(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        await page.add_init_script(
            """localStorage.setItem("pageturn.sampling", '{"max_tokens": 150}')"""
        )
        await open_page(page, fake_server)
        await ask_for(page, 3)
        await send(page, "a long one")
        bodies = page.locator(".pt-card-body")
        await expect(bodies).to_have_count(3)
        scrolled = "(all) => all.map((body) => body.scrollTop > 0)"
        await page.wait_for_function(
            f"({scrolled})([...document.querySelectorAll('.pt-card-body')]).every(Boolean)"
        )
        await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
        assert await bodies.evaluate_all(scrolled) == [False] * 3
        await page.locator(".pt-usage").first.evaluate("(line) => line.append(' wraps'.repeat(30))")
        bottoms = await page.locator(".pt-use").evaluate_all(
            "(all) => all.map((button) => button.getBoundingClientRect().bottom)"
        )
        assert len(set(bottoms)) == 1

    async def test_sampling_of_the_settings_reaches_the_server(
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


class TestDrafts:
    """Nothing that is typed is lost."""

    async def test_a_new_chat_beside_others_keeps_its_draft(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        await open_page(page, fake_server)
        await send(page, "hello")
        await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
        conversation = page.url
        await page.locator(".pt-new").click()
        box = page.get_by_label("Message", exact=True)
        await box.press_sequentially("unsent")
        await page.reload()
        await expect(box).to_have_value("unsent")
        await page.goto(conversation)
        await expect(page.locator(".pt-message")).to_have_count(2)
        await expect(box).to_have_value("")
        await page.locator(".pt-new").click()
        await expect(box).to_have_value("unsent")

    async def test_what_is_typed_before_a_first_message_has_arrived_goes_on_with_it(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        gate = Gate()
        await page.route_web_socket(re.compile("/ws/chat"), gate.join)
        await open_page(page, fake_server)
        box = page.get_by_label("Message", exact=True)
        gate.close()
        await send(page, "hello")
        await box.press_sequentially("typed since")
        gate.open()
        await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
        await expect(box).to_have_value("typed since")
        await page.reload()
        await expect(page.locator(".pt-message")).to_have_count(2)
        await expect(box).to_have_value("typed since")
        await page.locator(".pt-new").click()
        await expect(box).to_have_value("")

    async def test_an_edit_that_was_begun_is_there_after_a_reload_until_it_is_given_up(
        self, page: Page, fake_server: AppProcess
    ) -> None:
        await open_page(page, fake_server)
        await send(page, "hello")
        await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
        edit, area = (
            page.get_by_role("button", name="Edit and resend"),
            page.get_by_label("Your message"),
        )
        await edit.click()
        await area.fill("hello again")
        await page.reload()
        await edit.click()
        await expect(area).to_have_value("hello again")
        await page.get_by_role("button", name="Cancel").click()
        await edit.click()
        await expect(area).to_have_value("hello")


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
        await row.get_by_role("button", name="More").click()
        await page.get_by_role("menuitem", name="Rename").click()
        await page.get_by_label("Title", exact=True).fill("Zebra crossing")
        await page.keyboard.press("Enter")
        await expect(row).to_contain_text("Zebra crossing")
        await expect(row.locator(".pt-conversation-open")).to_have_css("outline-offset", "-2px")
        await page.get_by_label("Search conversations").fill("zebra")
        await expect(page.locator(".pt-conversation")).to_have_count(1)
        await page.get_by_label("Search conversations").fill("")
        await row.hover()
        await row.get_by_role("button", name="More").click()
        await page.get_by_role("menuitem", name="Delete").click()
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
        context = await browser.new_context(viewport=DESKTOP)
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
    context = await browser.new_context(viewport=DESKTOP)
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
    await expect(page.locator(".pt-pending")).to_contain_text(
        "Will be sent when the connection is back."
    )
    with running_fake_app(tmp_path, port):
        await expect(banner).to_be_hidden()
        await expect(page.locator(".pt-user")).to_have_count(2)
        await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(2)
        await context.close()
