"""Comparing several answers in a real browser: where they part, and what the model thought there."""

import pytest
from playwright.async_api import Page, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import ask_three, placed

pytestmark = pytest.mark.browser


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
    await expect(marks.first).to_have_attribute("aria-label", "Answer A goes its own way with “1.”")
    await expect(items.first).to_have_css("list-style-type", "none")
    await expect(items.nth(1)).to_have_css("list-style-type", "decimal")
    box, of = await marks.first.bounding_box(), await items.first.bounding_box()
    assert box is not None
    assert of is not None
    assert box["x"] + box["width"] <= of["x"]
    assert box["height"] < 30
    assert abs(box["y"] - of["y"]) < 12
    assert await placed(items.nth(1)) == before
