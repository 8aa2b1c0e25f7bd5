"""How several answers look in a real browser: nothing of a card is cut off or covered, however wide the window."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import ask_three, open_page, placed, send, stop

pytestmark = pytest.mark.browser

CUT_OFF = """(all) => all.flatMap((part) => [part, ...part.children])
    .filter((part) => part.scrollWidth > part.clientWidth + 1 && part.clientWidth).map((part) => part.outerHTML)"""


async def ask_with_temperatures(page: Page) -> None:
    await page.get_by_role("button", name="1 answer", exact=True).click()
    await page.get_by_role("menuitem", name="Different temperatures").click()
    await page.get_by_role("button", name="Use for my messages").click()


async def test_heads_of_cards_are_one_line_and_in_sight(
    page: Page, fake_server: AppProcess
) -> None:
    cards = await ask_three(page, fake_server, "a quick long one")
    heads = cards.locator("header")
    await expect(heads).to_have_text([f"Answer {letter}complete" for letter in "ABC"])
    await expect(cards.first.locator(".pt-usage")).to_have_text(
        re.compile(r"^400 tokens · \S+ tokens/s$")
    )
    boxes = await heads.evaluate_all(
        "(all) => all.map((head) => [head.getBoundingClientRect().top, head.offsetHeight])"
    )
    top = await page.locator(".pt-scroll").evaluate("(node) => node.getBoundingClientRect().top")
    assert {height for _, height in boxes} == {44}
    assert all(top <= y < top + 200 for y, _ in boxes)


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
        [re.compile(rf"^Answer [ABC]T {t}$") for t in ("0.3", "0.8", "1.3")]
    )
    assert await heads.evaluate_all(CUT_OFF) == []
    await stop(page)
    await send(page, "a quick long one")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    await expect(heads.last).to_have_text("Answer CT 1.3complete")
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
