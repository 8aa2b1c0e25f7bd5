"""Continuing answers in a real browser: the button under one that was cut short, and a selection in the middle."""

import json
import re

import pytest
from playwright.async_api import ElementHandle, Page, WebSocketRoute, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import open_page, send, start_long_answer, stop, stop_button, text_grows
from tests.e2e.fake_app import MARKDOWN

pytestmark = pytest.mark.browser

# Selects from the first occurrence of a text in an element to its end, as a person would with a mouse.
SELECT = """([prose, words]) => {
  const walker = document.createTreeWalker(prose, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const at = node.data.indexOf(words);
    if (at < 0) continue;
    document.getSelection().setBaseAndExtent(node, at, node, at + words.length);
    return;
  }
  throw new Error(`no ${words} here`);
}"""


async def select_words(page: Page, words: str, prose: ElementHandle | None = None) -> None:
    """Select `words` in `prose`, else in the last answer."""
    prose = prose or await page.locator(".pt-assistant .pt-prose").last.element_handle()
    await page.evaluate(SELECT, [prose, words])


def contents(server: AppProcess, page: Page) -> list[str]:
    """The stored answers of the page's conversation, oldest first."""
    tree = server.get(f"/api/conversations/{page.url.partition('#')[2]}")
    return [m["content"] for m in tree["messages"] if m["role"] == "assistant"]


async def test_a_stopped_answer_is_continued_with_its_text_in_place(
    page: Page, server: AppProcess
) -> None:
    prose = await start_long_answer(page, server)
    await stop(page)
    before = await prose.inner_text()
    await page.get_by_role("button", name="Continue this answer").click()
    await expect(stop_button(page)).to_be_visible()
    await expect(page.locator(".pt-assistant .pt-count")).to_have_count(0)
    await expect(prose).to_have_text(re.compile(re.escape(before[:40])), use_inner_text=True)
    await text_grows(prose)
    await stop(page)
    await expect(page.locator(".pt-assistant .pt-count")).to_have_text("2/2")
    first, second = contents(server, page)
    assert second.startswith(first)
    assert len(second) > len(first)
    tree = server.get(f"/api/conversations/{page.url.partition('#')[2]}")
    usage = tree["messages"][-1]["usage"]
    assert usage["kept_tokens"] > 0
    new = usage["completion_tokens"]
    told = f"{usage['kept_tokens'] + new:,} tokens, the last {new:,} new"
    await expect(page.locator(".pt-meta")).to_contain_text(told)
    await page.locator(".pt-meta").click()
    await expect(page.locator(".pt-facts")).to_contain_text(
        f"Answer{told}Prompt with what was kept"
    )
    await page.reload()
    await expect(page.locator(".pt-assistant .pt-count")).to_have_text("2/2")
    await expect(page.get_by_role("button", name="Continue this answer")).to_be_visible()


async def test_a_selection_is_continued_three_ways(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    await send(page, "hello")
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    await expect(page.get_by_role("button", name="Continue this answer")).to_have_count(0)
    bar = page.get_by_role("toolbar", name="Continue from here")
    await select_words(page, "answer0-3")
    await expect(bar).to_contain_text("answer0-2 answer0-3”")
    await page.get_by_role("button", name="Continue from here, three ways").click()
    await expect(bar).to_be_hidden()
    cards = page.locator(".pt-card")
    await expect(cards).to_have_count(3)
    await expect(page.locator('.pt-card[data-status="done"]')).to_have_count(3)
    kept = "answer0-0 answer0-1 answer0-2 answer0-3"
    for index, text in enumerate(contents(fake_server, page)[1:]):
        assert text.startswith(f"{kept}answer{index}-0 "), text
        await expect(cards.nth(index)).to_contain_text(f"{kept}answer{index}-0")


async def test_a_selection_in_rendered_text_finds_its_place_in_the_source(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await send(page, "quick markdown")
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    places = [
        ("A heading", "## A heading"),
        ("costs", "## A heading\n\nIt costs"),
        ("and", "## A heading\n\nIt costs $5 or $10, and"),
        ("answer", MARKDOWN.partition("answer")[0] + "answer"),
        ("42", MARKDOWN.partition("42")[0] + "42"),
        ("value", MARKDOWN.partition("value")[0] + "value"),
        ("The end", MARKDOWN.partition("The end")[0] + "The end"),
    ]
    for number, (words, kept) in enumerate(places, 1):
        await select_words(page, words)
        await page.get_by_role("button", name="Continue from here", exact=True).click()
        await expect(page.locator(".pt-assistant .pt-count")).to_have_text(
            f"{number + 1}/{number + 1}"
        )
        await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
        assert contents(fake_server, page)[-1] == kept + MARKDOWN, words
        for version in range(number, 0, -1):
            await page.get_by_role("button", name="Previous version").click()
            count = page.locator(".pt-assistant .pt-count")
            await expect(count).to_have_text(f"{version}/{number + 1}")


PLACES = [
    ("plain words here", "plain words here", "words", "plain words"),
    ("a **bold one** here", "a bold one here", "bold one", "a **bold one**"),
    ("1. 10 apples\n2. 2 pears", "10 apples\n2 pears", "2 pears", "1. 10 apples\n2. 2 pears"),
    (
        "see [the site](http://to.it) to",
        "see the site to",
        "site to",
        "see [the site](http://to.it) to",
    ),
    ("```bash\nbash -c 'x'\n```\nend", "bash -c 'x'\nend", "-c", "```bash\nbash -c"),
    ("so\n\n\n- it *is*", "so\nit is", "is", "so\n\n\n- it *is*"),
    ("👩 and 👩‍🚀 fly", "👩 and 👩‍🚀 fly", "👩‍🚀", "👩 and 👩‍🚀"),
]


async def test_places_in_sources(page: Page, fake_server: AppProcess) -> None:
    """What the rendered text ends with, to what the source is kept up to."""
    await open_page(page, fake_server)
    for source, shown, words, kept in PLACES:
        count = shown.index(words) + len(words)
        found = await page.evaluate(
            "([source, shown, head]) => source.slice(0, Pageturn.places.placeInSource(source, shown, head.length))",
            [source, shown, shown[:count]],
        )
        assert found == kept, source


async def test_a_selection_outside_of_answers_offers_nothing(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await send(page, "hello")
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    bar = page.locator(".pt-from-here")
    await select_words(page, "answer0-1")
    await expect(bar).to_be_visible()
    await page.evaluate("document.getSelection().removeAllRanges()")
    await expect(bar).to_be_hidden()
    await page.evaluate(
        "document.getSelection().selectAllChildren(document.querySelector('.pt-user'))"
    )
    await select_words(page, "answer0-1")
    await expect(bar).to_be_visible()
    await page.evaluate(
        "document.getSelection().selectAllChildren(document.querySelector('.pt-user'))"
    )
    await expect(bar).to_be_hidden()


async def test_what_is_selected_while_the_answer_is_written_is_offered_at_its_end(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await send(page, "markdown")
    heading = page.locator(".pt-assistant").get_by_role("heading", name="A heading")
    await expect(page.locator(".pt-assistant .pt-prose pre")).to_be_visible()
    await select_words(page, "A heading", await heading.element_handle())
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    await expect(page.locator(".pt-from-here")).to_be_visible()


async def test_the_bar_comes_when_the_mouse_has_selected(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await send(page, "hello")
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    box = await page.locator(".pt-assistant .pt-prose p").bounding_box()
    assert box is not None
    bar = page.locator(".pt-from-here")
    await page.mouse.move(box["x"] + 2, box["y"] + 12)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 300, box["y"] + 12, steps=4)
    assert await page.evaluate("document.getSelection().toString().length") > 10
    await expect(bar).to_be_hidden()
    await page.mouse.up()
    await expect(bar).to_be_visible()
    await page.mouse.click(box["x"] + 2, box["y"] + 300)
    await expect(bar).to_be_hidden()


async def test_a_phone_continues_from_a_selection(phone: Page, fake_server: AppProcess) -> None:
    await open_page(phone, fake_server)
    await send(phone, "hello")
    await expect(phone.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    await select_words(phone, "answer0-2")
    bar = phone.get_by_role("toolbar", name="Continue from here")
    await expect(bar).to_be_in_viewport(ratio=1)
    await phone.get_by_role("button", name="Continue from here", exact=True).tap()
    await expect(phone.locator(".pt-assistant .pt-count")).to_have_text("2/2")
    await expect(phone.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    assert contents(fake_server, phone)[-1].startswith("answer0-0 answer0-1 answer0-2answer0-0 ")


SENTENCES = (
    "echo First one. Second one! Third one?\n\n- An item. More of it.\n\n"
    "```\ncode = 1. + 2.\n\n  rest = 3\n```\n\nThe last item."
)


async def hold_views_back(page: Page) -> None:
    """From the end of the first answer on, nothing tells the page anew of its conversation."""
    await page.route_web_socket(re.compile("/ws/chat"), join_until_the_end)


def join_until_the_end(end: WebSocketRoute) -> None:
    server = end.connect_to_server()
    seen: set[str] = set()

    def pass_on(text: str | bytes) -> None:
        kind = json.loads(text)["type"]
        seen.add(kind)
        if kind != "conversation" or "candidate" not in seen:
            end.send(text)

    server.on_message(pass_on)


async def test_an_answer_is_whole_before_its_conversation_is_told_anew(
    page: Page, fake_server: AppProcess
) -> None:
    await hold_views_back(page)
    await open_page(page, fake_server)
    await send(page, "echo All of it.")
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    await page.get_by_role("button", name="More for this answer").press("Enter")
    await page.get_by_role("menuitem", name="Continue from a place…").click()
    await expect(page.get_by_role("toolbar", name="Continue from here")).to_contain_text("All of")


async def test_a_place_is_chosen_sentence_by_sentence_without_a_mouse(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await send(page, SENTENCES)
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    more = page.get_by_role("button", name="More for this answer")
    await more.focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    bar = page.get_by_role("toolbar", name="Continue from here")
    go_on = bar.get_by_role("button", name="Continue from here", exact=True)
    await expect(go_on).to_be_focused()
    for key, words in [
        (None, "The last item."),
        ("ArrowUp", "rest = 3"),
        ("ArrowUp", "code = 1. + 2."),
        ("ArrowUp", "More of it."),
        ("ArrowUp", "An item."),
        ("ArrowLeft", "Third one?"),
        ("ArrowDown", "An item."),
        ("Home", "First one."),
        ("ArrowUp", "First one."),
        ("End", "The last item."),
        ("Home", "First one."),
        ("ArrowRight", "Second one!"),
    ]:
        if key:
            await page.keyboard.press(key)
        await expect(bar).to_contain_text(f"{words}”")
        assert await page.evaluate("document.getSelection().toString()") == words
        await expect(go_on).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(bar).to_be_hidden()
    await expect(more).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Home")
    await page.keyboard.press("Enter")
    await expect(page.locator(".pt-assistant .pt-count")).to_have_text("2/2")
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    assert contents(fake_server, page)[-1].startswith("First one.First one. Second one!")


async def test_a_place_in_a_long_answer_stays_in_sight_and_is_moved_by_taps(
    phone: Page, fake_server: AppProcess
) -> None:
    await open_page(phone, fake_server)
    text = " ".join(f"This is sentence number {number} of many." for number in range(45))
    await send(phone, f"echo {text}")
    await expect(phone.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    await phone.get_by_role("button", name="More for this answer").tap()
    await phone.get_by_role("menuitem", name="Continue from a place").tap()
    bar = phone.get_by_role("toolbar", name="Continue from here")
    await expect(bar).to_contain_text("number 44 of many.”")
    await bar.get_by_role("button", name="Previous sentence").tap()
    await expect(bar).to_contain_text("number 43 of many.”")
    await phone.keyboard.press("Home")
    await expect(bar).to_contain_text("number 0 of many.”")
    await expect(bar).to_be_in_viewport(ratio=1)
    place = """() => {
        const [place, box] = [document.getSelection().getRangeAt(0), document.querySelector(".pt-scroll")]
            .map((part) => part.getBoundingClientRect());
        return place.top >= box.top && place.bottom <= box.bottom;
    }"""
    assert await phone.evaluate(place)
    await bar.get_by_role("button", name="Next sentence").tap()
    await expect(bar).to_contain_text("number 1 of many.”")
