"""What the page tells of answers, in a real browser: facts, seeds, failures, a full context, keys."""

import asyncio
import json
import re

import pytest
from playwright.async_api import Page, expect

from tests.chat.exports import open_webui
from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import ask_for, boxes_of, frames_of, open_page, send
from tests.e2e.test_browser_conversations import drop
from tests.e2e.test_browser_settings import say, stored

pytestmark = pytest.mark.browser


async def test_all_facts_are_a_click_away_and_a_seed_is_used_again(
    page: Page, fake_server: AppProcess
) -> None:
    sent = frames_of(page)
    await open_page(page, fake_server)
    await say(page, "hello")
    line = page.get_by_role("button", name="12 tokens ·")
    await expect(line).to_have_attribute("aria-expanded", "false")
    await line.click()
    facts = page.locator(".pt-facts")
    await expect(facts).to_contain_text("Modelfake")
    await page.set_viewport_size({"width": 1280, "height": 560})
    await line.click()
    await expect(facts).to_have_count(0)
    await line.click()
    box, dock = await boxes_of(page, ".pt-facts", ".pt-dock")
    assert box["bottom"] + 10 <= dock["top"]
    await expect(facts).to_contain_text("Prompt12 tokens, 0 of them cached")
    await expect(facts).to_contain_text("Temperature0.8")
    seed = facts.get_by_role("button", name="use it again")
    number = int(await seed.inner_text())
    await seed.click()
    chip = page.get_by_role("button", name=f"Seed {number} is used; draw freely again")
    await expect(chip).to_be_visible()
    await say(page, "again")
    tree = await asyncio.to_thread(
        fake_server.get, f"/api/conversations/{page.url.rpartition('#')[2]}"
    )
    assert tree["messages"][-1]["seed"] == number
    await chip.click()
    await expect(chip).to_be_hidden()
    assert (await stored(page, fake_server))["sampling"] == {}
    assert "sampling" not in [frame for frame in sent if frame["type"] == "send"][-1]


async def test_escape_closes_facts_once_nothing_above_them_is_open(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await say(page, "hello")
    line = page.get_by_role("button", name="12 tokens ·")
    facts = page.locator(".pt-facts")
    await line.click()
    await page.get_by_role("button", name="More for this answer").click()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("menu")).to_have_count(0)
    await page.keyboard.press("?")
    await page.keyboard.press("Escape")
    await expect(page.locator("dialog")).to_have_count(0)
    await page.get_by_label("Search").press("Escape")
    await expect(facts).to_have_count(1)
    await facts.get_by_role("button", name="use it again").focus()
    await page.keyboard.press("Escape")
    await expect(facts).to_have_count(0)
    await expect(line).to_be_focused()
    await expect(line).to_have_attribute("aria-expanded", "false")


async def test_facts_are_brought_wholly_into_sight_wherever_they_are_opened(
    page: Page, phone: Page, fake_server: AppProcess
) -> None:
    messages = [
        {
            "id": f"m{i}", "parent_id": f"m{i - 1}" if i else None, "status": "done", "model": "a model",
            "role": "assistant" if i % 2 else "user", "content": f"Text {i}. " * 60, "seed": 1,
            "sampling": {"temperature": 1, "max_tokens": 9, "stop": ["END"], "top_p": 0.5},
        }
        for i in range(20)
    ]  # fmt: skip
    about = {"title": "Long", "pinned": False, "head_id": "m19", "sampling": {}}
    file = {"format": "pageturn.conversation", "version": 1, "conversation": about, "messages": messages}  # fmt: skip
    for window in (page, phone):
        await open_page(window, fake_server)
        again = "Pageturn.api('POST', 'conversations/import?again=true', file)"
        await window.evaluate(
            f"async (file) => Pageturn.chat.open((await {again}).conversation_ids[0])", file
        )
        lines = window.locator(".pt-meta")
        await expect(lines).to_have_count(10)
        for at in (9, 4):
            await lines.nth(at).evaluate("(line) => line.scrollIntoView({ block: 'end' })")
            await lines.nth(at).click()
            facts = window.locator(".pt-facts")
            await expect(facts).to_contain_text("a model")
            await expect(facts).to_contain_text("Longest answer9Stop strings“END”Top p0.5")
            box, dock, seen = await boxes_of(window, ".pt-facts", ".pt-dock", ".pt-scroll")
            assert box["bottom"] + 10 <= dock["top"]
            assert box["top"] >= seen["top"]
            await lines.nth(at).click()
            await expect(facts).to_have_count(0)


async def test_of_an_answer_of_which_nothing_is_known_that_is_said(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await page.evaluate(drop({"rivers.json": json.dumps(open_webui())}))
    await page.locator(".pt-meta").first.click()
    await expect(page.locator(".pt-facts")).to_have_text(
        "Nothing is known of how this answer was made."
    )


async def test_on_a_phone_the_buttons_of_an_answer_stand_in_one_line(
    phone: Page, fake_server: AppProcess
) -> None:
    unheard = json.dumps(open_webui()).replace("Name a river.", "Which rivers flow to a lake?")
    await open_page(phone, fake_server)
    await phone.evaluate(drop({"rivers.json": unheard}))
    foot = phone.locator(".pt-assistant .pt-foot").first
    await expect(foot.locator(".pt-residency")).to_have_text(re.compile(r"prefill \d+ tokens"))
    tops = await foot.locator("button:not(.pt-meta), .pt-residency").evaluate_all(
        "(all) => all.map((each) => { const box = each.getBoundingClientRect(); return Math.round(box.top + box.height / 2); })"
    )
    assert len(tops) == 7
    assert max(tops) - min(tops) <= 1
    assert await phone.evaluate("document.documentElement.scrollWidth") == 390


CHOICES = {
    "choices": [
        {"text": " the", "probability": 0.5, "drawn": True},
        {"text": "\n\n", "probability": 0.25, "drawn": False},
        {"text": "", "probability": 0.1, "drawn": False},
    ]
}


async def test_signs_for_what_cannot_be_seen_are_explained(
    page: Page, fake_server: AppProcess
) -> None:
    await page.route("**/choices?*", lambda route: route.fulfill(json=CHOICES))
    await open_page(page, fake_server)
    await ask_for(page, 2)
    await send(page, "hello")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(2)
    await page.get_by_role("button", name="Compare").click()
    await page.locator(".pt-leaves").first.hover()
    choices = page.locator(".pt-choices")
    await expect(choices.locator("code")).to_have_text(["·the", "⏎⏎", "(end)"])
    await expect(choices.locator(".pt-signs")).to_have_text("· is a space, ⏎ is a line break")


async def test_a_failed_answer_keeps_its_reason_over_a_reload_and_is_tried_again(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await send(page, "please stumble")
    note = page.locator(".pt-assistant .pt-note")
    await expect(note).to_contain_text("This answer failed: the scripted engine has stumbled")
    await page.reload()
    await expect(note).to_contain_text("This answer failed: the scripted engine has stumbled")
    await note.get_by_role("button", name="Retry").click()
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    await expect(page.locator(".pt-assistant .pt-count")).to_have_text("2/2")


async def test_a_first_message_that_never_fits_is_itself_too_long(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await send(page, "a" * 3000)
    pending = page.locator(".pt-pending")
    alert = pending.get_by_role("alert")
    await expect(alert).to_contain_text("This message is too long for the model: the prompt has")
    await expect(alert).not_to_contain_text("A new chat starts fresh")
    await expect(pending.get_by_role("button")).to_have_text(["Retry", "Edit"])


async def test_the_meter_fills_and_a_full_context_is_a_choice(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    meter = page.locator(".pt-context-meter")
    await expect(meter).to_be_hidden()
    await say(page, "a" * 900)
    await expect(meter).to_have_text("45 %")
    await say(page, "b" * 700)
    await expect(meter).to_have_attribute("data-level", "high")
    await send(page, "c" * 700)
    pending = page.locator(".pt-pending")
    await expect(pending.get_by_role("alert")).to_contain_text(
        "This conversation is too long for the model"
    )
    await page.reload()
    await expect(page.get_by_label("Message", exact=True)).to_have_value("c" * 700)
    await page.get_by_role("button", name="Send", exact=True).click()
    await pending.get_by_role("button", name="Leave out the oldest turns").click()
    answer = page.locator(".pt-assistant[data-status=done]").nth(2)
    await expect(answer).to_be_visible()
    await expect(page.locator(".pt-user")).to_have_count(3)
    await answer.locator(".pt-meta").click()
    await expect(page.locator(".pt-facts")).to_contain_text(
        "Left out of the promptthe oldest 4 messages"
    )
    await expect(meter).to_have_attribute(
        "aria-label",
        "Context: 719 of 2,048 tokens. When it is full, the oldest turns are left out of the prompt.",
    )
    await meter.click()
    await expect(
        page.get_by_role("dialog").get_by_label("Leave the oldest turns out")
    ).to_be_checked()


async def test_the_keys_are_listed_and_lead_where_they_say(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await page.locator(".pt-scroll").focus()
    await page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    await expect(dialog.locator("dt")).to_have_count(13)
    await expect(dialog.locator("dt").nth(3)).to_have_text("1–8")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await page.keyboard.press("/")
    box = page.get_by_label("Message", exact=True)
    await expect(box).to_be_focused()
    await page.keyboard.type("what/where?")
    await expect(box).to_have_value("what/where?")


async def test_the_models_own_system_prompt_can_be_seen(page: Page, server: AppProcess) -> None:
    await open_page(page, server)
    defaults = await asyncio.to_thread(server.get, "/api/defaults")
    await page.get_by_role("button", name="Settings of this conversation").click()
    note = page.get_by_role("dialog").locator("label", has_text="System prompt").locator("small")
    said = defaults["system_prompt"]
    await expect(note).to_have_text(
        f"Empty: the model's own template says “{said}”." if said else "Empty: the model gets none."
    )


async def test_send_stands_at_the_end_and_the_keys_are_told_where_there_is_room(
    phone: Page, page: Page, fake_server: AppProcess
) -> None:
    for window in (phone, page):
        await open_page(window, fake_server)
        ends = await window.evaluate(
            """[".pt-send", ".pt-composer-row"].map((name) => document.querySelector(name).getBoundingClientRect().right)"""
        )
        assert ends[0] == ends[1]
    hint = page.get_by_text("Enter sends")
    await expect(hint).to_be_visible()
    await expect(phone.get_by_text("Enter sends")).to_be_hidden()
    await page.set_viewport_size({"width": 780, "height": 700})
    await expect(hint).to_be_hidden()
