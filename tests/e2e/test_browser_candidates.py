"""Several answers in a real browser: what sharing saves, temperatures, which one goes on, where they part."""

import asyncio
import json
import re

import pytest
from playwright.async_api import Locator, Page, expect
from websockets.asyncio.client import connect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import ask_for, open_page, send, stop, text_grows
from tests.e2e.test_browser_accessibility import assert_clean
from tests.e2e.test_browser_continue import select_words

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


def frames_of(page: Page) -> list[dict]:
    """What the page sends from now on."""
    sent: list[dict] = []
    page.on("websocket", lambda s: s.on("framesent", lambda data: sent.append(json.loads(data))))
    return sent


async def frames_to(page: Page, kind: str) -> asyncio.Queue[dict]:
    """The frames of a kind that the page is sent from now on."""
    told: asyncio.Queue[dict] = asyncio.Queue()

    def listen(data: str | bytes) -> None:
        if isinstance(data, str) and (frame := json.loads(data))["type"] == kind:
            told.put_nowait(frame)

    page.on("websocket", lambda socket: socket.on("framereceived", listen))
    return told


async def ask_three(page: Page, server: AppProcess, text: str) -> Locator:
    """A new chat whose first message is answered three times; returns the finished cards."""
    await open_page(page, server)
    await ask_for(page, 3)
    await send(page, text)
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    return page.locator(".pt-card")


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
    for number in (1, 3):
        await page.get_by_role("button", name=f"Stop answer {number}").click()
        card = page.locator(".pt-card").nth(number - 1)
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


async def test_heads_of_cards_are_one_line_and_in_sight(
    page: Page, fake_server: AppProcess
) -> None:
    cards = await ask_three(page, fake_server, "a quick long one")
    heads = cards.locator("header")
    await expect(heads).to_have_text([f"Answer {number}complete" for number in (1, 2, 3)])
    await expect(cards.first.locator(".pt-usage")).to_have_text(
        re.compile(r"^400 tokens · \S+ tokens/s$")
    )
    boxes = await heads.evaluate_all(
        "(all) => all.map((head) => [head.getBoundingClientRect().top, head.offsetHeight])"
    )
    top = await page.locator(".pt-scroll").evaluate("(node) => node.getBoundingClientRect().top")
    assert {height for _, height in boxes} == {44}
    assert all(top <= y < top + 200 for y, _ in boxes)


CUT_OFF = """(all) => all.flatMap((part) => [part, ...part.children])
    .filter((part) => part.scrollWidth > part.clientWidth + 1 && part.clientWidth).map((part) => part.outerHTML)"""


@pytest.mark.parametrize("width", [1280, 1120, 800])
async def test_nothing_of_a_cards_head_and_foot_is_cut_off(
    page: Page, fake_server: AppProcess, width: int
) -> None:
    await page.set_viewport_size({"width": width, "height": 860})
    await open_page(page, fake_server)
    await ask_with_temperatures(page)
    await send(page, "a long one")
    heads = page.locator(".pt-card > header")
    await expect(heads).to_have_text(
        [re.compile(rf"^Answer \dT {t}$") for t in ("0.3", "0.8", "1.3")]
    )
    assert await heads.evaluate_all(CUT_OFF) == []
    await stop(page)
    await send(page, "a quick long one")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    await expect(heads.last).to_have_text("Answer 3T 1.3complete")
    assert await page.locator(".pt-card > :is(header, footer)").evaluate_all(CUT_OFF) == []


async def test_on_a_phone_the_composer_says_all_of_what_it_asks_for(
    phone: Page, fake_server: AppProcess
) -> None:
    await open_page(phone, fake_server)
    await ask_with_temperatures(phone)
    button = phone.get_by_role("button", name=re.compile("^3 answers.*T 0.3–1.3$"))
    assert await button.evaluate_all(CUT_OFF) == []
    assert await phone.locator(".pt-composer-row").evaluate(
        "(row) => row.scrollWidth <= row.clientWidth"
    )
    await send(phone, "hello")
    await expect(phone.locator(".pt-card[data-status=done]")).to_have_count(3)
    assert await button.evaluate_all(CUT_OFF) == []


async def ask_with_temperatures(page: Page) -> None:
    await page.get_by_role("button", name="1 answer", exact=True).click()
    await page.get_by_role("menuitem", name="Different temperatures").click()
    await page.get_by_role("button", name="Use for my messages").click()


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
    await dialog.get_by_label("Answer 1").fill("0")
    await dialog.get_by_label("Answer 2").fill("1.7")
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


async def test_an_answer_has_one_number_on_its_card_and_among_the_versions(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await send(page, "hello")
    await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(1)
    await page.get_by_role("button", name="Regenerate ×3").click()
    cards = page.locator(".pt-card")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    await expect(cards.locator("h3")).to_have_text(["Answer 2", "Answer 3", "Answer 4"])
    await expect(page.locator(".pt-hint").last).to_have_text(
        "Press 2–4 to pick. A new message continues answer 2."
    )
    await page.locator(".pt-scroll").focus()
    await page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    await expect(dialog.locator("dt").nth(3)).to_have_text("2–4")
    await page.keyboard.press("Escape")
    await page.keyboard.press("1")
    await expect(cards).to_have_count(3)
    await page.keyboard.press("3")
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
    await expect(hint).to_contain_text("continues answer 1")
    await cards.nth(0).locator(".pt-card-body").focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await expect(cards.nth(2)).to_have_attribute("aria-current", "true")
    await expect(cards.nth(0)).not_to_have_attribute("aria-current", "true")
    await expect(hint).to_contain_text("continues answer 3")
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
        "continues answer 3"
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
    await page.get_by_role("button", name="Stop answer 2").click()
    await expect(cards.nth(1)).to_have_attribute("data-status", "stopped")
    await expect(cards.nth(0)).to_have_attribute("data-status", "generating")
    await stop(page)
    kept = await cards.nth(1).locator(".pt-prose").inner_text()
    await page.get_by_role("button", name="Continue answer 2").click()
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


async def test_compare_marks_where_answers_part_and_what_the_model_thought(
    page: Page, fake_server: AppProcess
) -> None:
    cards = await ask_three(page, fake_server, "hello")
    toggle = page.get_by_role("button", name="Compare")
    before = await cards.nth(1).locator(".pt-prose").inner_html()
    await toggle.click()
    await expect(toggle).to_have_attribute("aria-pressed", "true")
    marks = page.locator(".pt-leaves")
    await expect(marks).to_have_text(["0", "1", "2"])
    for index in range(3):
        # One token is one byte here: all answers begin with "answer".
        text = await cards.nth(index).locator(".pt-prose").inner_text()
        assert text.startswith(f"answer{index}-0 ")
    await marks.nth(1).hover()
    choices = page.locator(".pt-choices")
    await expect(choices.locator("li")).to_have_count(6)
    await expect(choices.locator("li").first).to_have_text("a50 %")
    await expect(choices.locator(".pt-drawn")).to_have_text("10.1 %")
    await page.mouse.move(5, 5)
    await expect(choices).to_have_count(0)
    await marks.nth(2).focus()
    await expect(choices.locator(".pt-drawn")).to_have_text("20.1 %")
    await page.keyboard.press("Escape")
    await expect(choices).to_have_count(0)
    await marks.nth(2).hover()
    await expect(choices).to_have_count(1)
    await page.get_by_role("tab", name="Dashboard").focus()
    await page.keyboard.press("Enter")
    await expect(choices).to_have_count(0)
    await page.get_by_role("tab", name="Chat").click()
    await toggle.click()
    await expect(marks).to_have_count(0)
    assert await cards.nth(1).locator(".pt-prose").inner_html() == before


async def test_what_the_model_thought_goes_with_its_mark_and_with_escape(
    page: Page, fake_server: AppProcess
) -> None:
    await ask_three(page, fake_server, "hello")
    await page.get_by_role("button", name="Compare").click()
    mark = page.locator(".pt-leaves").nth(1)
    choices = page.locator(".pt-choices")
    await page.locator(".pt-scroll").focus()
    await mark.hover()
    await expect(choices).to_have_count(1)
    await page.keyboard.press("Escape")
    await expect(choices).to_have_count(0)
    await page.mouse.move(5, 5)
    await mark.hover()
    await expect(choices).to_have_count(1)
    await page.keyboard.press("2")
    await expect(page.locator(".pt-card")).to_have_count(0)
    await expect(choices).to_have_count(0)


async def test_comparing_and_a_new_chat_have_their_keys(
    page: Page, fake_server: AppProcess
) -> None:
    await ask_three(page, fake_server, "hello")
    toggle = page.get_by_role("button", name="Compare")
    box = page.get_by_label("Message", exact=True)
    await box.press_sequentially("nc")
    await expect(box).to_have_value("nc")
    await expect(toggle).to_have_attribute("aria-pressed", "false")
    await page.locator(".pt-scroll").focus()
    await page.keyboard.press("c")
    await expect(page.locator(".pt-leaves")).to_have_count(3)
    await page.keyboard.press("c")
    await expect(page.locator(".pt-leaves")).to_have_count(0)
    await page.keyboard.press("n")
    await expect(page.locator(".pt-empty")).to_contain_text("What shall we write?")
    await expect(box).to_be_focused()
    await expect(box).to_have_value("")


@pytest.mark.parametrize(
    ("asked", "words"), [("list", ["1.", "**", "F"]), ("bold list", ["1.", "-", "F"])]
)
async def test_compare_marks_the_number_of_a_list_in_its_place(
    page: Page, fake_server: AppProcess, asked: str, words: list[str]
) -> None:
    """However the item begins, its number is there once."""
    cards = await ask_three(page, fake_server, asked)
    items = cards.first.locator("li")
    before = await placed(items.nth(1))
    await page.get_by_role("button", name="Compare").click()
    marks = page.locator(".pt-leaves")
    await expect(marks).to_have_text(words)
    await expect(marks.first).to_have_attribute("aria-label", "Answer 1 goes its own way with “1.”")
    await expect(items.first).to_have_css("list-style-type", "none")
    await expect(items.nth(1)).to_have_css("list-style-type", "decimal")
    box, of = await marks.first.bounding_box(), await items.first.bounding_box()
    assert box is not None
    assert of is not None
    assert box["x"] + box["width"] <= of["x"]
    assert box["height"] < 30
    assert abs(box["y"] - of["y"]) < 12
    assert await placed(items.nth(1)) == before


async def placed(part: Locator) -> tuple[float, float]:
    """Where a part of the page begins and ends, from the top."""
    box = await part.bounding_box()
    assert box is not None
    return box["y"], box["y"] + box["height"]


async def check_all_in_sight(page: Page) -> None:
    """From the heads of the cards to the button under them nothing is covered, however long the answers."""
    bar = page.locator(".pt-tabs .tab-wrapper")
    cards, compare = page.locator(".pt-card"), page.get_by_role("button", name="Compare")
    dock = page.locator(".pt-dock")
    await expect(compare).to_be_visible()
    top, bottom = (await placed(bar))[1], (await placed(dock))[0]
    for part in (cards.first, page.locator(".pt-candidates-foot"), compare):
        begin, end = await placed(part)
        assert top <= begin < end <= bottom


@pytest.mark.parametrize("size", [(1280, 860), (1280, 720), (1600, 1000)])
async def test_cards_and_what_is_under_them_fit_above_the_composer(
    page: Page, fake_server: AppProcess, size: tuple[int, int]
) -> None:
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    await ask_three(page, fake_server, "a quick long one")
    await check_all_in_sight(page)


async def test_on_a_phone_a_card_and_what_is_under_it_fit_above_the_composer(
    phone: Page, fake_server: AppProcess
) -> None:
    await ask_three(phone, fake_server, "a quick long one")
    await check_all_in_sight(phone)
