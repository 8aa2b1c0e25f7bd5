"""Files of conversations in a real browser: what may be dropped, and what is here already."""

import json

import pytest
from playwright.async_api import Browser, Page, expect

from tests.chat.exports import chatgpt, open_webui
from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import open_page, placed
from tests.e2e.test_browser_conversations import drop, many

pytestmark = pytest.mark.browser


async def test_what_is_here_already_is_opened_and_imported_only_on_wish(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    toast, opened = page.locator(".pt-toast"), "Pageturn.chat.openId()"
    file = drop({"rivers.json": json.dumps(open_webui())})
    await page.evaluate(file)
    await expect(toast).to_have_text("1 conversation imported.")
    first = await page.evaluate(opened)
    await page.locator(".pt-new").click()
    await page.evaluate(file)
    told = "1 conversation was here already. Nothing was imported."
    await expect(toast).to_contain_text(told)
    assert await page.evaluate(opened) is None
    await toast.get_by_role("button", name="Open it").click()
    assert await page.evaluate(opened) == first
    await page.evaluate(file)
    await expect(toast).to_contain_text(told)
    await page.evaluate("Pageturn.toast('Settings saved')")
    await expect(toast).to_have_text("Settings saved")
    await toast.get_by_role("button", name="Import anyway").click()
    await expect(toast).to_contain_text("1 conversation imported again.")
    copy = await page.evaluate(opened)
    assert copy not in (first, None)
    await expect(page.locator(".pt-assistant").last).to_contain_text("The Elbe.")
    await toast.get_by_role("button", name="Undo").click()
    await expect(page.locator(f'.pt-conversation[data-id="{copy}"]')).to_have_count(0)
    await expect(page.locator(".pt-conversation")).to_have_count(1)
    assert await page.evaluate(opened) is None


async def test_what_was_here_is_told_in_words_that_can_be_read_on_a_phone(
    phone: Page, fake_server: AppProcess
) -> None:
    await open_page(phone, fake_server)
    file = drop({"rivers.json": json.dumps(open_webui())})
    await phone.evaluate(file)
    await expect(phone.locator(".pt-toast")).to_have_text("1 conversation imported.")
    await phone.evaluate(file)
    words = phone.locator(".pt-toast > span", has_text="was here already")
    await expect(words).to_be_in_viewport(ratio=1)
    names = ("Open it", "Import anyway", "Dismiss")
    for name in names:
        await expect(phone.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
    box = await words.bounding_box()
    assert box is not None
    assert box["width"] > 200
    buttons = [await placed(phone.get_by_role("button", name=name)) for name in names]
    assert len(set(buttons)) == 1


async def test_of_several_files_only_what_was_here_is_imported_again(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    toast = page.locator(".pt-toast")
    known = [open_webui(), chatgpt()]
    await page.evaluate(drop({"known.json": json.dumps(known)}))
    await expect(toast).to_have_text("2 conversations imported.")
    mixed = {"a.json": json.dumps([open_webui(), known[1]]), "b.json": json.dumps(known[0])}
    await page.evaluate(drop(mixed))
    await expect(toast).to_contain_text("1 conversation imported. 2 were here already.")
    asked = page.expect_response(lambda response: "again=true" in response.url)
    brought: list[str] = []
    async with asked as response:
        page.on("request", lambda each: brought.append(each.post_data or ""))
        await toast.get_by_role("button", name="Import anyway").click()
    await response.value
    await expect(toast).to_contain_text("2 conversations imported again.")
    again = [json.loads(each) for each in brought if each]
    assert again == [[known[1]], known[0]]


async def test_empty_conversations_are_left_out_and_told(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    toast = page.locator(".pt-toast")
    empty = {"title": "New chat", "mapping": {}}
    await page.evaluate(drop({"chats.json": json.dumps([empty, chatgpt(), empty])}))
    await expect(toast).to_contain_text("1 conversation imported. 2 were empty and left out.")
    await expect(page.locator(".pt-conversation")).to_have_count(1)
    await page.evaluate(drop({"chats.json": json.dumps([empty])}))
    await expect(toast).to_contain_text(
        "1 conversation was empty and left out. Nothing was imported."
    )
    await expect(page.locator(".pt-conversation")).to_have_count(1)


async def test_files_with_nothing_in_them_are_told_in_so_many_words(
    browser: Browser, fake_server: AppProcess
) -> None:
    page = await browser.new_page()
    await open_page(page, fake_server)
    await page.evaluate(drop({"blank.json": "", "space.json": " \n", "object.json": "{}"}))
    await expect(page.get_by_role("dialog", name="Not imported").locator("dd")).to_have_text(
        ["The file is empty.", "The file is empty.", "The file has no conversations."]
    )
    await page.context.close()


async def test_settings_that_the_model_cannot_run_are_named(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    file = many(1)
    sampling = {"guided_regex": "(", "logit_bias": {"999999": 1}, "top_k": 3}
    file["conversations"][0]["conversation"]["sampling"] = sampling
    file["conversations"][0]["messages"][0]["content"] = "with settings"
    await page.evaluate(drop({"mine.json": json.dumps(file)}))
    await expect(page.locator(".pt-toast")).to_have_text(
        "1 conversation imported. Left out, as this model cannot run it: logit_bias, guided_regex."
    )


async def test_what_can_be_imported_is_said_where_one_imports(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    said = "From Pageturn, ChatGPT (its conversations.json) or Open WebUI"
    await page.get_by_role("button", name="More for all conversations").click()
    await expect(page.get_by_role("menuitem").first).to_contain_text(said)
    await page.keyboard.press("Escape")
    await page.evaluate(drop({"a.json": "{}"}).replace(', "drop"', ""))
    await expect(page.locator(".pt-curtain")).to_contain_text(said)
