"""The sidebar in a real browser: search, pages, menus, copies, files; with the scripted engine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.chat.exports import chatgpt, open_webui
from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import boxes_of, open_page, send, start_long_answer, stop
from tests.e2e.conftest import running_fake_app
from tests.e2e.hostile import LINES
from tests.e2e.test_browser_accessibility import assert_clean

pytestmark = pytest.mark.browser

NUM_CONVERSATIONS = 5000


def many(count: int) -> dict[str, Any]:
    """A file of ours with so many conversations of one message."""
    return {
        "format": "pageturn.conversations",
        "version": 1,
        "conversations": [_one(number) for number in range(count)],
    }


def _one(number: int) -> dict[str, Any]:
    message = {"id": "m", "parent_id": None, "role": "user", "content": f"needle{number}."}
    time = f"2020-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}+00:00"
    about = {"title": f"Straw {number}", "pinned": False, "head_id": "m", "updated_at": time}
    return {
        "format": "pageturn.conversation",
        "version": 1,
        "conversation": about,
        "messages": [message | {"status": "done"}],
    }


def drop(files: dict[str, str]) -> str:
    """A script that drops files of JSON on the page."""
    return f"""() => {{
        const data = new DataTransfer();
        for (const [name, text] of Object.entries({json.dumps(files)}))
            data.items.add(new File([text], name, {{ type: "application/json" }}));
        for (const type of ["dragenter", "dragover", "drop"])
            document.body.dispatchEvent(new DragEvent(type, {{ dataTransfer: data, bubbles: true, cancelable: true }}));
    }}"""


async def open_menu(page: Page, row: Locator) -> None:
    await row.hover()
    await row.get_by_role("button", name="More").click()


async def ask(page: Page, text: str) -> None:
    await send(page, text)
    await expect(page.locator(".pt-assistant").last).to_have_attribute("data-status", "done")


async def open_drawer(phone: Page) -> None:
    await phone.locator("#pt-sidebar .toggle-button").click()
    await expect(phone.locator(".pt-list")).to_be_in_viewport()


async def test_a_text_deep_in_another_branch_is_found_and_jumped_to(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await page.evaluate(drop({"rivers.json": json.dumps(open_webui())}))
    await expect(page.locator(".pt-toast")).to_have_text("1 conversation imported.")
    await expect(page.locator(".pt-assistant")).to_have_count(2)
    search = page.get_by_label("Search conversations")
    await search.fill("danube the")
    row = page.locator(".pt-conversation")
    await expect(row).to_have_count(1)
    await expect(row.locator(".pt-snippet")).to_have_text("The Danube.")
    await expect(row.locator("mark")).to_have_text(["The", "Danube"])
    elsewhere = row.locator(".pt-elsewhere")
    await expect(elsewhere).to_have_text("on another branch")
    await search.fill("elbe")
    await expect(row.locator("mark")).to_have_text(["Elbe"])
    await expect(elsewhere).to_have_count(0)
    await search.fill("danube the")
    await expect(elsewhere).to_have_count(1)
    await row.locator(".pt-conversation-open").click()
    answer = page.locator(".pt-assistant")
    await expect(answer).to_have_count(1)
    await expect(answer).to_contain_text("The Danube.")
    await expect(answer).to_be_focused()
    await expect(elsewhere).to_have_count(0)
    await search.fill("rivers")
    await expect(row.locator(".pt-title mark")).to_have_text("Rivers")
    await search.fill("nothing has this")
    await expect(page.locator(".pt-list")).to_have_text("Nothing found")
    await search.press("Escape")
    await expect(page.locator(".pt-conversation", has_text="Rivers")).to_have_count(1)


async def test_thousands_are_listed_page_by_page_and_found(page: Page, tmp_path: Path) -> None:
    """With an app of its own: to remove so many conversations again takes longer than to start one."""
    with running_fake_app(tmp_path) as server:
        await open_page(page, server)
        text = json.dumps(many(NUM_CONVERSATIONS))
        await page.evaluate(drop({"many.json": text}))
        await expect(page.locator(".pt-toast")).to_have_text("5,000 conversations imported.")
        await page.reload()
        rows = page.locator(".pt-conversation")
        await expect(rows.nth(50)).to_be_attached()
        before = await rows.count()
        assert before <= 200
        await page.locator(".pt-list").evaluate("(list) => list.scrollTo(0, list.scrollHeight)")
        await expect(rows.nth(before + 50)).to_be_attached()
        assert await rows.count() <= 400
        await page.get_by_label("Search conversations").fill("needle17.")
        await expect(rows).to_have_count(1)
        await rows.locator(".pt-conversation-open").click()
        await expect(page.locator(".pt-user .pt-prose")).to_have_text("needle17.")
        await page.close()


async def test_the_menu_renames_pins_copies_and_saves(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    await ask(page, "# Plan for **today**")
    row = page.locator(".pt-conversation.pt-open")
    await expect(row).to_have_text("Plan for today")
    await row.hover()
    more = row.get_by_role("button", name="More")
    await more.focus()
    await page.keyboard.press("Enter")
    items = page.get_by_role("menuitem")
    await expect(items.first).to_be_focused()
    await page.keyboard.press("ArrowUp")
    await expect(items.last).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(items).to_have_count(0)
    await expect(more).to_be_focused()
    await open_menu(page, row)
    await items.get_by_text("Pin", exact=True).click()
    await expect(page.locator(".pt-group").first).to_have_text("Pinned")
    for text, name in (
        ("Export as JSON", "chat-plan-for-today.json"),
        ("Export as Markdown", "chat-plan-for-today.md"),
    ):
        await open_menu(page, row)
        async with page.expect_download() as download:
            await items.get_by_text(text).click()
        assert (await download.value).suggested_filename == name
    await open_menu(page, row)
    await items.get_by_text("Duplicate").click()
    await expect(row).to_have_text("Copy of Plan for today")
    await expect(page.locator(".pt-message")).to_have_count(2)
    await open_menu(page, row)
    await items.get_by_text("Duplicate").click()
    await expect(row).to_have_text("Copy 2 of Plan for today")
    await open_menu(page, row)
    await items.get_by_text("Delete").click()
    await expect(row).to_have_count(0)


RENAME_ALL = """(titles) => Promise.all([...document.querySelectorAll(".pt-conversation")].map(
    (row, index) => Pageturn.api("PATCH", `conversations/${row.dataset.id}`, { title: titles[index] })))"""


async def test_a_menu_at_a_row_outlasts_what_happens_in_the_list(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask(page, "the one with the menu")
    await page.locator(".pt-new").click()
    await ask(page, "another one")
    row = page.locator(".pt-conversation", has_text="the one with the menu")
    await open_menu(page, row)
    await page.evaluate(RENAME_ALL, ["renamed elsewhere", "this one, too"])
    await expect(page.locator(".pt-title")).to_have_text(["renamed elsewhere", "this one, too"])
    await page.get_by_role("menuitem", name="Rename").click()
    await expect(page.get_by_label("Title", exact=True)).to_have_value("this one, too")


async def test_on_a_phone_every_row_has_its_menu(phone: Page, fake_server: AppProcess) -> None:
    await open_page(phone, fake_server)
    await ask(phone, "first on the phone")
    await open_drawer(phone)
    await phone.locator(".pt-new").click()
    await ask(phone, "second on the phone")
    await open_drawer(phone)
    other = phone.locator(".pt-conversation", has_text="first on the phone")
    more = other.get_by_role("button", name="More")
    await expect(more).to_have_css("opacity", "1")
    (box,) = await boxes_of(phone, ".pt-conversation:not(.pt-open) .pt-more")
    assert min(box["width"], box["height"]) >= 40
    await more.tap()
    await phone.get_by_role("menuitem", name="Rename").tap()
    await phone.get_by_label("Title", exact=True).fill("renamed on the phone")
    await phone.keyboard.press("Enter")
    renamed = phone.locator(".pt-conversation", has_text="renamed on the phone")
    await renamed.get_by_role("button", name="More").tap()
    await phone.get_by_role("menuitem", name="Delete").tap()
    await expect(renamed).to_have_count(0)
    await phone.get_by_role("button", name="Undo").tap()
    await expect(renamed).to_have_count(1)


async def test_all_are_saved_and_brought_back_by_the_button(
    page: Page, fake_server: AppProcess, tmp_path: Path
) -> None:
    await open_page(page, fake_server)
    more = page.get_by_role("button", name="More for all conversations")
    await more.click()
    async with page.expect_download() as download:
        await page.get_by_role("menuitem", name="Export all as Markdown").click()
    assert re.fullmatch(r"pageturn-\d{4}-\d\d-\d\d\.zip", (await download.value).suggested_filename)
    file = tmp_path / "bread.json"
    file.write_text(json.dumps([chatgpt()]))
    await more.click()
    async with page.expect_file_chooser() as chooser:
        await page.get_by_role("menuitem", name="Import").click()
    await (await chooser.value).set_files(file)
    await expect(page.locator(".pt-user .pt-prose")).to_have_text("How is bread made?")
    await expect(page.locator(".pt-assistant .pt-count")).to_have_text("1/2")


async def test_a_broken_file_is_refused_with_its_place(
    browser: Browser, fake_server: AppProcess
) -> None:
    page = await browser.new_page()
    await open_page(page, fake_server)
    broken = chatgpt()
    broken["mapping"]["a1"]["parent"] = "sys"
    mine = many(1)
    mine["conversations"][0]["messages"][0]["role"] = "root"
    files = {
        "good.json": json.dumps(open_webui()),
        "<b>bad</b>.json": json.dumps([chatgpt(), broken]),
        "mine.json": json.dumps(mine),
        "no.json": "{",
        "zip.json": "PK",
    }
    await page.evaluate(drop(files))
    dialog = page.get_by_role("dialog", name="Not imported")
    await expect(dialog.locator("dt")).to_have_text(
        ["<b>bad</b>.json", "mine.json", "no.json", "zip.json"]
    )
    await expect(dialog.locator("dd")).to_have_text(
        [
            "Conversation 2, field “mapping.a1.parent”: must name the node that lists it.",
            "Conversation 1, message 1, field “role”: must be one of 'user', 'assistant'.",
            "It is no whole JSON file: it ends inside of an object at line 1 column 1.",
            "It is no whole JSON file: expected value at line 1 column 1.",
        ]
    )
    await expect(dialog).to_contain_text(
        "1 conversation imported. Nothing of these files was taken in. What can be read: JSON files"
    )
    await assert_clean(page, "files that were not imported")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await page.context.close()


async def test_an_answer_that_ends_elsewhere_is_marked_as_new(
    page: Page, fake_server: AppProcess
) -> None:
    await start_long_answer(page, fake_server)
    row = page.locator(".pt-conversation.pt-open")
    identity = await row.get_attribute("data-id")
    other = await page.context.new_page()
    await page.locator(".pt-new").click()
    marked = page.locator(f'.pt-conversation[data-id="{identity}"]')
    await other.goto(f"{fake_server.url}#{identity}")
    await stop(other)
    await expect(marked.locator(".pt-unread")).to_be_visible()
    await page.bring_to_front()
    await page.reload()
    await marked.locator(".pt-conversation-open").click()
    await expect(marked.locator(".pt-unread")).to_have_count(0)


# Found and measured at once: the list may be drawn anew at any time, and nodes taken out of it have no height.
HEIGHTS = (
    """(selector) => [...document.querySelectorAll(selector)].map((node) => node.clientHeight)"""
)


async def test_hostile_titles_and_file_names_stay_text(page: Page, fake_server: AppProcess) -> None:
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    await open_page(page, fake_server)
    width = await page.locator(".pt-sidebar").evaluate("(node) => node.scrollWidth")
    documents: list[Any] = [open_webui() | {"title": line} for line in LINES]
    for document, line in zip(documents, LINES, strict=True):
        document["chat"]["history"]["messages"]["a"]["content"] = f"Rhenus {line} Rhenus"
    await page.evaluate(drop({LINES[3]: json.dumps(documents)}))
    await expect(page.locator(".pt-toast")).to_have_text(f"{len(LINES)} conversations imported.")
    search = page.get_by_label("Search conversations")
    await search.fill("rhenus")
    await expect(page.locator(".pt-snippet").first).to_contain_text("Rhenus")
    assert await page.locator(".pt-snippet").count() >= 60
    assert max(await page.evaluate(HEIGHTS, ".pt-snippet")) == 35
    assert await page.locator(".pt-list :is(img, svg svg, iframe, style, a)").count() == 0
    assert await page.locator(".pt-sidebar").evaluate("(node) => node.scrollWidth") == width
    heights = await page.evaluate(HEIGHTS, ".pt-conversation")
    assert 0 < min(heights) <= max(heights) <= 100
    assert await page.evaluate("window.hacked") is None
    assert [url for url in fetched if not url.startswith(fake_server.url)] == []


COVERS = """(all) => {
    const toast = document.querySelector(".pt-toast").getBoundingClientRect();
    return all.map((part) => part.getBoundingClientRect()).filter((box) => box.width && box.height)
        .some((box) => box.left < toast.right && toast.left < box.right && box.top < toast.bottom && toast.top < box.bottom);
}"""


async def test_a_notice_covers_nothing_that_is_read_or_pressed(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask(page, "a quick long one")
    await page.get_by_role("button", name="Branches").click()
    await page.get_by_role("treeitem").nth(1).focus()
    await page.keyboard.press("Delete")
    await expect(page.locator(".pt-toast")).to_contain_text("1 message deleted")
    parts = page.locator("[role=tab], .pt-tree-opener, .pt-sidebar, .pt-chat")
    assert await parts.count() >= 6
    assert await parts.evaluate_all(COVERS) is False


async def test_on_a_phone_a_notice_leaves_tabs_and_composer_free(
    phone: Page, fake_server: AppProcess
) -> None:
    await open_page(phone, fake_server)
    await ask(phone, "short")
    await phone.get_by_role("button", name="Branches").tap()
    await phone.get_by_role("treeitem").nth(1).get_by_role("button", name="Delete").tap()
    toast = phone.locator(".pt-toast")
    await expect(toast).to_contain_text("1 message deleted")
    free = phone.locator("[role=tab], .pt-tree-opener, .toggle-button, .pt-composer")
    assert await free.evaluate_all(COVERS) is False
    box = await toast.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    await toast.get_by_role("button", name="Dismiss").tap()
    await expect(toast).to_have_count(0)


async def test_what_was_deleted_comes_back_by_key_but_not_from_a_field(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask(page, "to be deleted")
    row = page.locator(".pt-conversation.pt-open")
    await open_menu(page, row)
    await page.get_by_role("menuitem", name="Delete").click()
    await expect(page.locator(".pt-toast")).to_contain_text("deleted")
    box = page.get_by_label("Message", exact=True)
    await box.press_sequentially("word")
    await box.press("Control+z")
    await expect(page.locator(".pt-toast")).to_have_count(1)
    await box.fill("")
    await box.press("Control+z")
    await expect(page.locator(".pt-user .pt-prose")).to_have_text("to be deleted")
    await expect(page.locator(".pt-toast")).to_have_count(0)


async def test_marks_of_markdown_are_left_out_of_what_a_search_finds(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask(page, "echo say **zanzibar** and `code`")
    await page.get_by_label("Search conversations").fill("zanzibar")
    snippet = page.locator(".pt-conversation .pt-snippet").first
    await expect(snippet).to_contain_text("zanzibar and code")
    await expect(snippet.locator("mark")).to_have_text("zanzibar")


FOUND = """() => {
    const box = document.querySelector(".pt-scroll").getBoundingClientRect();
    return [...CSS.highlights.get("pt-found") ?? []].map((range) => {
        const place = range.getBoundingClientRect();
        return [range.toString(), place.top >= box.top && place.bottom <= box.bottom];
    });
}"""


async def test_the_words_that_were_found_are_marked_and_in_sight(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask(page, "a quick long one, looked through")
    await ask(page, "short")
    await page.locator(".pt-new").click()
    search = page.get_by_label("Search conversations")
    await search.fill("ANSWER0-250")
    row = page.locator(".pt-conversation", has_text="looked through")
    await expect(row.locator(".pt-snippet mark")).to_have_text("answer0-250")
    await row.locator(".pt-conversation-open").click()
    answers = page.locator(".pt-assistant")
    await expect(answers.first).to_be_focused()
    assert await page.evaluate(FOUND) == [["answer0-250", True]]
    await search.fill("short answer0-3")
    await expect(page.locator(".pt-conversation")).to_have_count(0)
    assert await page.evaluate(FOUND) == []


async def test_a_title_has_the_whole_row_until_its_menu_is_wanted(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask(page, "a question with quite a few words in its title")
    row = page.locator(".pt-conversation.pt-open")
    button = row.locator(".pt-conversation-open")
    title, menu = ".pt-open .pt-title", ".pt-open .pt-more"
    await page.mouse.move(700, 400)
    await expect(button).to_have_css("padding-right", "10px")
    (wide,) = await boxes_of(page, title)
    await row.hover()
    await expect(button).to_have_css("padding-right", "42px")
    narrow, button_box = await boxes_of(page, title, menu)
    assert narrow["width"] < wide["width"]
    assert narrow["right"] <= button_box["left"]
