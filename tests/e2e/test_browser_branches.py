"""The overview of a conversation's branches in a real browser, with the scripted engine; what a branch costs, with the model too."""

import asyncio
import json
import re
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from tests.chat.exports import open_webui
from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import boxes_of, open_page, send, stop, text_grows
from tests.e2e.hostile import TEXTS
from tests.e2e.test_browser_conversations import ask, drop
from tests.e2e.test_browser_waiting import with_cable

pytestmark = pytest.mark.browser


async def open_rivers(page: Page, server: AppProcess) -> None:
    """Two answers to one question; the first goes on, and is on show."""
    await open_page(page, server)
    await page.evaluate(drop({"rivers.json": json.dumps(open_webui())}))
    await expect(page.locator(".pt-assistant")).to_have_count(2)


async def open_tree(page: Page) -> Locator:
    await page.get_by_role("button", name="Branches").click()
    rows = page.get_by_role("treeitem")
    await expect(rows.first).to_be_visible()
    return rows


def shown(rows: Locator) -> Locator:
    return rows.locator(".pt-beginning")


async def test_the_whole_tree_is_walked_by_keyboard(page: Page, fake_server: AppProcess) -> None:
    await open_rivers(page, fake_server)
    rows = await open_tree(page)
    await expect(shown(rows)).to_have_text(
        ["Name a river.", "The Rhine.", "Another.", "The Elbe.", "The Danube."]
    )
    levels = await rows.evaluate_all("(all) => all.map((row) => row.ariaLevel)")
    assert levels == ["1", "2", "3", "3", "2"]
    await expect(rows.nth(3)).to_be_focused()
    await expect(rows.nth(3)).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("ArrowLeft")
    await expect(rows.nth(1)).to_be_focused()
    await page.keyboard.press("ArrowLeft")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(1)).to_have_attribute("aria-expanded", "false")
    await expect(rows.nth(1)).to_contain_text("+2")
    await page.keyboard.press("ArrowRight")
    await expect(rows).to_have_count(5)
    await page.keyboard.press("ArrowRight")
    await expect(rows.nth(2)).to_be_focused()
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    answers = page.locator(".pt-assistant")
    await expect(answers).to_have_count(1)
    await expect(answers).to_contain_text("The Danube.")
    await expect(rows.nth(4)).to_have_attribute("aria-selected", "true")
    await rows.nth(3).click()
    await expect(page.locator(".pt-assistant").last).to_contain_text("The Elbe.")
    await expect(page.locator(".pt-tree")).to_be_visible()


async def test_what_hangs_under_a_message_with_several_is_indented_and_folds(
    page: Page, fake_server: AppProcess
) -> None:
    document = open_webui()
    messages = document["chat"]["history"]["messages"]
    messages["q2"]["childrenIds"] = ["c", "d"]
    messages["d"] = messages["c"] | {"id": "d", "content": "The Seine."}
    await open_page(page, fake_server)
    await page.evaluate(drop({"rivers.json": json.dumps([document])}))
    await expect(page.locator(".pt-assistant")).to_have_count(2)
    rows = await open_tree(page)
    told = "(all) => all.map((row) => [row.ariaLevel, row.ariaExpanded, row.querySelector('.pt-who').getBoundingClientRect().x])"
    looks = await rows.evaluate_all(told)
    assert [level for level, _, _ in looks] == ["1", "2", "3", "4", "4", "2"]
    assert [folds for _, folds, _ in looks] == ["true", "true", "true", None, None, None]
    places = [x for _, _, x in looks]
    assert places[0] < places[1] == places[5] < places[2] < places[3] == places[4]
    await rows.filter(has_text="Another.").locator(".pt-fold").click()
    await expect(shown(rows)).to_have_text(
        ["Name a river.", "The Rhine.", "Another.", "The Danube."]
    )


async def test_however_deep_it_goes_each_level_is_indented_and_the_text_has_room(
    page: Page, fake_server: AppProcess
) -> None:
    document = open_webui()
    messages = {}
    for depth in range(25):
        above = f"a{depth - 1}" if depth else None
        below = f"a{depth + 1}" if depth < 24 else None
        beside = [each for each in (below, f"b{depth + 1}" if below else None) if each]
        for name, children in ((f"a{depth}", beside), (f"b{depth}", [])):
            if name != "b0":
                messages[name] = {
                    "id": name, "parentId": above, "childrenIds": children,
                    "role": "assistant" if depth % 2 else "user", "content": f"{name} says this",
                }  # fmt: skip
    document["chat"]["history"] = {"messages": messages, "currentId": "a24"}
    await open_page(page, fake_server)
    await page.evaluate(drop({"deep.json": json.dumps([document])}))
    await expect(page.locator(".pt-message")).to_have_count(25)
    rows = await open_tree(page)
    await expect(rows).to_have_count(49)
    looks = await rows.evaluate_all(
        "(all) => all.map((row) => { const box = row.querySelector('.pt-beginning').getBoundingClientRect();"
        " const who = row.querySelector('.pt-who').getBoundingClientRect(); return [Number(row.ariaLevel), who.x, row.getBoundingClientRect().right - box.left]; })"
    )
    places = {level: x for level, x, _ in looks}
    assert [places[level] for level in sorted(places)] == sorted(set(places.values()))
    assert len(places) == 25
    assert min(room for _, _, room in looks) > 100


async def test_escape_closes_and_the_focus_goes_back(page: Page, fake_server: AppProcess) -> None:
    await open_rivers(page, fake_server)
    rows = await open_tree(page)
    await expect(rows.nth(3)).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.locator(".pt-tree")).to_be_hidden()
    await expect(page.get_by_role("button", name="Branches")).to_be_focused()
    await page.locator(".pt-new").click()
    await expect(page.get_by_role("button", name="Branches")).to_be_hidden()


async def test_a_branch_is_deleted_by_key_with_its_number_and_brought_back(
    page: Page, fake_server: AppProcess
) -> None:
    await open_rivers(page, fake_server)
    rows = await open_tree(page)
    await rows.nth(1).focus()
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("ArrowRight")
    await expect(
        rows.nth(1).get_by_role("button", name="Delete this and 2 messages below")
    ).to_be_attached()
    await page.keyboard.press("Delete")
    await expect(page.locator(".pt-toast")).to_contain_text("3 messages deleted")
    await expect(shown(rows)).to_have_text(["Name a river.", "The Danube."])
    await expect(page.locator(".pt-assistant")).to_have_count(1)
    await expect(page.locator(".pt-assistant")).to_contain_text("The Danube.")
    await expect(page.locator(".pt-assistant .pt-count")).to_have_count(0)
    await page.get_by_role("button", name="Undo").click()
    await expect(rows).to_have_count(5)
    await expect(page.locator(".pt-assistant").last).to_contain_text("The Elbe.")


async def test_a_question_whose_only_answer_was_deleted_is_answered_again(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask(page, "a question")
    rows = await open_tree(page)
    unanswered = page.get_by_role("group", name="No answer yet")
    await expect(unanswered).to_have_count(0)
    await rows.nth(1).focus()
    await page.keyboard.press("Delete")
    await expect(page.locator(".pt-assistant")).to_have_count(0)
    await unanswered.get_by_role("button", name="Answer", exact=True).click()
    await expect(page.locator(".pt-assistant")).to_have_attribute("data-status", "done")
    await expect(unanswered).to_have_count(0)
    answer = await page.locator(".pt-assistant").get_attribute("data-id")
    await expect(rows.nth(1)).to_have_attribute("data-id", str(answer))
    await rows.nth(1).focus()
    await page.keyboard.press("Delete")
    await unanswered.get_by_role("button", name="Three answers").click()
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    await expect(unanswered).to_have_count(0)


async def test_a_branch_is_looked_at_while_an_answer_is_written_in_another(
    page: Page, fake_server: AppProcess
) -> None:
    await open_rivers(page, fake_server)
    await send(page, "a long one")
    answers = page.locator(".pt-assistant")
    await expect(answers).to_have_count(3)
    rows = await open_tree(page)
    await rows.filter(has_text="The Danube.").click()
    await expect(answers).to_have_count(1)
    await expect(answers).to_contain_text("The Danube.")
    await expect(answers).to_be_focused()
    await expect(page.locator(".pt-stop")).to_be_visible()
    await rows.filter(has_text="a long one").click()
    await expect(answers).to_have_count(3)
    await text_grows(answers.last.locator(".pt-prose"))
    await answers.first.get_by_role("button", name="Next version").click()
    await expect(answers).to_have_count(1)
    await expect(answers).to_contain_text("The Danube.")
    await stop(page)


async def test_a_jump_that_cannot_be_made_now_is_not_made_later(
    page: Page, fake_server: AppProcess
) -> None:
    cable = await with_cable(page)
    await open_rivers(page, fake_server)
    rows = await open_tree(page)
    await cable.cut()
    await expect(page.locator(".pt-banner")).to_contain_text("Reconnecting")
    await rows.nth(4).click()
    await expect(page.locator(".pt-status")).to_contain_text("No connection to the server")
    cable.mend()
    await expect(page.locator(".pt-banner")).to_be_hidden()
    await page.locator(".pt-assistant").first.get_by_role("button", name="Next version").click()
    await expect(page.locator(".pt-assistant")).to_have_count(1)
    await expect(page.get_by_role("button", name="Next version")).to_be_focused()


async def test_a_branch_that_a_search_has_shown_is_left_again_on_wish(
    page: Page, fake_server: AppProcess
) -> None:
    await open_rivers(page, fake_server)
    await expect(page.locator(".pt-toast")).to_have_count(0)
    own = page.locator(f'[data-id="{await page.evaluate("Pageturn.chat.openId()")}"]')
    search = page.get_by_label("Search conversations")
    answers, toast = page.locator(".pt-assistant"), page.locator(".pt-toast")
    await search.fill("elbe")
    await expect(own.locator("mark")).to_have_text("Elbe")
    await own.locator(".pt-conversation-open").click()
    await expect(answers.last).to_be_focused()
    await expect(toast).to_have_count(0)
    await search.fill("danube")
    await expect(own.locator("mark")).to_have_text("Danube")
    await own.locator(".pt-conversation-open").click()
    await expect(answers).to_have_count(1)
    await expect(toast).to_contain_text("“Rivers” now shows another branch, where this was found")
    await page.locator(".pt-new").click()
    await toast.get_by_role("button", name="Back").click()
    await expect(answers).to_have_count(2)
    await expect(answers.last).to_contain_text("The Elbe.")
    await expect(answers.last).to_be_focused()
    await expect(toast).to_have_count(0)


async def test_when_everything_is_deleted_the_conversation_can_begin_anew(
    page: Page, fake_server: AppProcess
) -> None:
    await open_rivers(page, fake_server)
    rows = await open_tree(page)
    await rows.nth(0).hover()
    await rows.nth(0).get_by_role("button", name="Delete").click()
    await expect(page.locator(".pt-toast")).to_contain_text("5 messages deleted")
    await expect(page.locator(".pt-empty")).to_contain_text("Nothing is said")
    await ask(page, "a fresh start")
    await expect(page.locator(".pt-message")).to_have_count(2)


async def test_on_a_phone_it_covers_the_chat_and_a_tap_goes_there(
    phone: Page, fake_server: AppProcess
) -> None:
    await open_rivers(phone, fake_server)
    rows = await open_tree(phone)
    tree, remove = await boxes_of(phone, ".pt-tree", ".pt-node:last-child .pt-remove")
    assert tree["width"] == 390
    assert await phone.evaluate("document.documentElement.scrollWidth") == 390
    assert min(remove["width"], remove["height"]) >= 40
    await rows.nth(4).tap()
    await expect(phone.locator(".pt-tree")).to_be_hidden()
    await expect(phone.locator(".pt-assistant")).to_have_count(1)
    await expect(phone.locator(".pt-assistant")).to_contain_text("The Danube.")


async def test_left_and_right_change_the_version_of_a_focused_message(
    page: Page, fake_server: AppProcess
) -> None:
    await open_rivers(page, fake_server)
    answer = page.locator(".pt-assistant").first
    await answer.focus()
    await page.keyboard.press("ArrowRight")
    await expect(answer).to_contain_text("The Danube.")
    await expect(answer).to_be_focused()
    await page.keyboard.press("ArrowLeft")
    await expect(answer).to_contain_text("The Rhine.")
    await expect(page.locator(".pt-assistant").last).to_contain_text("The Elbe.")


async def test_each_branch_says_what_going_on_costs(page: Page, server: AppProcess) -> None:
    """Answered here and just now: instant. Imported, so never computed: its tokens, exactly."""
    await page.add_init_script(
        """localStorage.setItem("pageturn.sampling", '{"max_tokens": 24}')"""
    )
    await open_page(page, server)
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url) if r.url.endswith("/residency") else None)
    await ask(page, "Name three things that float.")
    assert asked == []
    await page.get_by_role("button", name="Regenerate", exact=True).click()
    answer = page.locator(".pt-assistant")
    await expect(answer.locator(".pt-count")).to_have_text("2/2")
    chip = answer.locator(".pt-residency")
    await expect(chip).to_have_text("instant")
    unheard = json.dumps(open_webui()).replace("Name a river.", "Which rivers carry ships?")
    await page.evaluate(drop({"rivers.json": unheard}))
    await expect(page.locator(".pt-user")).to_have_count(2)
    chip = page.locator(".pt-assistant").first.locator(".pt-residency")
    await expect(chip).to_have_text(re.compile(r"prefill \d+ tokens"))
    identity = await page.locator(".pt-assistant").first.get_attribute("data-id")
    stats = await asyncio.to_thread(server.get, "/api/stats")
    found = await asyncio.to_thread(server.get, f"/api/messages/{identity}/residency")
    assert (await asyncio.to_thread(server.get, "/api/stats"))["counters"] == stats["counters"]
    missing = found["prompt_tokens"] - found["cached_tokens"]
    await expect(chip).to_have_text(f"prefill {missing} tokens")
    rows = await open_tree(page)
    await expect(rows.locator(".pt-residency")).to_have_count(2)
    await expect(rows.locator(".pt-residency").first).to_have_text(f"prefill {missing} tokens")
    await expect(page.locator(".pt-costs")).to_be_visible()
    cost = rows.nth(1).locator(".pt-residency")
    await page.mouse.move(5, 5)
    await expect(cost).to_have_css("font-size", "0px")
    await rows.nth(1).hover()
    await expect(cost).to_have_css("font-size", "12px")


async def test_only_what_is_in_sight_is_asked_for(page: Page, fake_server: AppProcess) -> None:
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url) if r.url.endswith("/residency") else None)
    await open_page(page, fake_server)
    await page.evaluate(drop({"wide.json": json.dumps(_many_answers(300))}))
    await expect(page.locator(".pt-assistant .pt-count")).to_have_text("1/300")
    rows = await open_tree(page)
    await expect(rows).to_have_count(301)
    await expect(rows.nth(3).locator(".pt-residency")).not_to_be_empty()
    assert 0 < len(asked) < 60


async def test_hostile_texts_in_the_tree_stay_text(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    await page.evaluate(drop({"hostile.json": json.dumps(_many_answers(len(TEXTS), TEXTS))}))
    await expect(page.locator(".pt-assistant .pt-count")).to_have_text(f"1/{len(TEXTS)}")
    rows = await open_tree(page)
    await expect(rows).to_have_count(len(TEXTS) + 1)
    assert await page.locator(".pt-nodes :is(img, iframe, style, a, script)").count() == 0
    assert await page.locator(".pt-nodes").evaluate("(n) => n.scrollWidth <= n.clientWidth")
    heights = "[...document.querySelectorAll('.pt-node')].map((row) => row.offsetHeight)"
    assert set(await page.evaluate(heights)) == {40}
    assert await page.evaluate("window.hacked") is None


def _many_answers(count: int, texts: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    document = open_webui()
    ids = [f"a{i}" for i in range(count)]
    question = document["chat"]["history"]["messages"]["q"] | {"childrenIds": ids}
    answers = {
        identity: {
            "id": identity,
            "parentId": "q",
            "childrenIds": [],
            "role": "assistant",
            "content": texts[i] if texts else f"answer {i}",
        }
        for i, identity in enumerate(ids)
    }
    messages = {"q": question, **answers}
    document["chat"]["history"] = {"messages": messages, "currentId": "a0"}
    return [document]
