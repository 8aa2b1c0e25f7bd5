"""A window between a phone's and a desktop's, in a real browser: everything has its room, and nothing covers anything."""

import json
import re

import pytest
from playwright.async_api import Page, expect

from tests.chat.exports import open_webui
from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import boxes_of, open_dashboard, open_page, start_long_answer, stop
from tests.e2e.test_browser_conversations import drop
from tests.e2e.test_browser_settings import say

pytestmark = pytest.mark.browser

WIDTHS = (769, 900, 1000, 1100)
WIDE_PARTS = """[...document.querySelectorAll(".pt-dashboard .pt-panel, .pt-dashboard .pt-panel > *, .pt-tile")]
  .filter((part) => part.scrollWidth > part.clientWidth + 1 || part.getBoundingClientRect().right > innerWidth)
  .map((part) => part.className)"""
LINES = """[...document.querySelectorAll(".pt-tile dd:first-of-type")]
  .filter((value) => value.offsetHeight > 1.5 * parseFloat(getComputedStyle(value).lineHeight)).map((value) => value.innerText)"""

# Where the cells of a request begin that have a name above their number.
NAMES = """(row) => [...row.children].slice(1).map((cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return range.getBoundingClientRect().top;
})"""


@pytest.mark.parametrize("width", WIDTHS)
async def test_the_dashboard_fits_beside_the_sidebar(
    page: Page, fake_server: AppProcess, width: int
) -> None:
    await page.set_viewport_size({"width": width, "height": 860})
    await start_long_answer(page, fake_server)
    await open_dashboard(page)
    await expect(page.locator("tr[data-request]").first).to_be_visible()
    await expect(page.locator(".pt-bars")).to_be_visible()
    await page.evaluate(
        "for (const value of document.querySelectorAll('.pt-tile dd:first-of-type')) value.textContent = '1,234 ms'"
    )
    assert await page.evaluate(WIDE_PARTS) == []
    assert await page.evaluate(LINES) == []
    tops = await page.locator("tr[data-request]").first.evaluate(NAMES)
    assert (len(tops), len(set(tops))) == (8, 2 if width < 800 else 1)
    sidebar, dashboard = await boxes_of(page, "#pt-sidebar", ".pt-dashboard")
    assert (sidebar["right"], sidebar["width"]) == (dashboard["left"], 240)
    await page.get_by_role("tab", name="Chat").click()
    await stop(page)


@pytest.mark.parametrize("width", WIDTHS)
async def test_the_overview_of_branches_stands_beside_the_chat_and_the_sidebar_comes_back(
    page: Page, fake_server: AppProcess, width: int
) -> None:
    await page.set_viewport_size({"width": width, "height": 860})
    await open_page(page, fake_server)
    await page.evaluate(drop({"rivers.json": json.dumps(open_webui())}))
    await expect(page.locator(".pt-assistant")).to_have_count(2)
    search = page.get_by_label("Search conversations")
    await expect(search).to_be_in_viewport()
    branches = page.get_by_role("button", name="Branches")
    await branches.click()
    await expect(page.get_by_role("treeitem").first).to_be_visible()
    await expect(search).not_to_be_in_viewport()
    chat, tree = await boxes_of(page, ".pt-scroll", ".pt-tree")
    assert chat["right"] <= tree["left"]
    assert chat["width"] > 380
    await branches.click()
    await expect(search).to_be_in_viewport()


async def test_a_sidebar_that_was_closed_stays_so_and_one_that_gave_way_comes_back_to_a_wide_window(
    page: Page, fake_server: AppProcess
) -> None:
    await page.set_viewport_size({"width": 1000, "height": 860})
    await open_page(page, fake_server)
    await page.evaluate(drop({"rivers.json": json.dumps(open_webui())}))
    await expect(page.locator(".pt-assistant")).to_have_count(2)
    search, toggle = page.get_by_label("Search conversations"), "#pt-sidebar .toggle-button"
    branches = page.get_by_role("button", name="Branches")
    await branches.click()
    await expect(search).not_to_be_in_viewport()
    await page.set_viewport_size({"width": 1280, "height": 860})
    await expect(search).to_be_in_viewport()
    await page.set_viewport_size({"width": 1000, "height": 860})
    await branches.click()
    await page.locator(toggle).click()
    await expect(search).not_to_be_in_viewport()
    await branches.click()
    await branches.click()
    await expect(page.locator(".pt-tree")).to_be_hidden()
    await expect(page.locator("#pt-sidebar")).not_to_have_class(re.compile("open"))


async def test_under_an_answer_beside_the_branches_everything_stands_in_one_line(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await say(page, "hello")
    await page.get_by_role("button", name="Branches").click()
    await expect(page.get_by_role("treeitem").first).to_be_visible()
    line = page.locator(".pt-assistant .pt-meta")
    words = "2,060 tokens · 92.2 tokens/s · 1.2 tokens per step · first after 240 ms"
    await line.evaluate("(node, words) => (node.textContent = words)", words)
    await expect(page.locator(".pt-assistant .pt-foot")).to_have_css("height", "40px")


async def test_lines_of_neighbours_begin_at_one_height_whatever_their_heads_take(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await open_dashboard(page)
    await page.locator(".pt-chart-value").first.evaluate(
        "(node) => (node.textContent = '100 % · 100 % '.repeat(9), node.style.flex = '0 1 auto')"
    )
    charts = await page.evaluate(
        """[...document.querySelectorAll(".pt-chart")].map((chart) =>
          [chart.querySelector("header").offsetHeight, chart.querySelector("canvas").getBoundingClientRect().top])"""
    )
    (first_head, first), (second_head, second), *_ = charts
    assert first_head > 1.5 * second_head
    assert first == second
