"""Settings in a real browser: a conversation's own, a new chat's, this browser's, and presets."""

import asyncio
from io import BytesIO

import pytest
from PIL import Image
from playwright.async_api import Browser, Locator, Page, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import frames_of, open_page, send
from tests.e2e.conftest import DESKTOP

pytestmark = pytest.mark.browser


async def open_dialog(page: Page) -> Locator:
    await page.get_by_role("button", name="Settings of this conversation").click()
    return page.get_by_role("dialog")


async def say(page: Page, text: str) -> None:
    """Send a message and wait for its answer."""
    answers = page.locator(".pt-assistant[data-status=done]")
    before = await answers.count()
    await send(page, text)
    await expect(answers).to_have_count(before + 1)


async def stored(page: Page, server: AppProcess) -> dict:
    """The page's conversation as the server has it."""
    identity = page.url.rpartition("#")[2]
    tree = await asyncio.to_thread(server.get, f"/api/conversations/{identity}")
    return tree["conversation"]


async def test_a_new_chat_takes_its_settings_to_its_first_answer(
    page: Page, fake_server: AppProcess
) -> None:
    sent = frames_of(page)
    await open_page(page, fake_server)
    dialog = await open_dialog(page)
    await expect(dialog).to_have_attribute("open", "")
    await expect(dialog.get_by_role("heading")).to_have_text("Settings of the new chat")
    await dialog.get_by_label("System prompt").fill("Answer in rhymes.")
    await dialog.get_by_label("Temperature").fill("0.3")
    await dialog.get_by_label("Stop strings").fill("END\nSTOP")
    await dialog.get_by_label("Leave the oldest turns out").check()
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(dialog).to_have_count(0)
    await page.reload()
    await say(page, "hello")
    (frame,) = [frame for frame in sent if frame["type"] == "send"]
    sampling = {"temperature": 0.3, "stop": ["END", "STOP"]}
    assert frame["system_prompt"] == "Answer in rhymes."
    assert frame["sampling"] == sampling
    await expect(page.locator(".pt-context-meter")).to_have_attribute(
        "aria-label",
        "Context: 50 of 2,048 tokens. When it is full, the oldest turns are left out"
        " of the prompt.",
    )
    conversation = await stored(page, fake_server)
    assert conversation["system_prompt"] == "Answer in rhymes."
    assert (conversation["sampling"], conversation["when_full"]) == (sampling, "drop_oldest")
    await page.get_by_role("button", name="New chat").click()
    dialog = await open_dialog(page)
    await expect(dialog.get_by_label("System prompt")).to_have_value("")


async def test_the_button_tells_that_a_conversation_has_settings_of_its_own(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    plain = page.get_by_role("button", name="Settings of this conversation", exact=True)
    telling = page.get_by_role(
        "button", name="Settings of this conversation: it has some of its own"
    )
    await page.get_by_role("button", name="1 answer").click()
    await page.get_by_role("menuitemradio", name="2 answers").click()
    await expect(plain).to_be_visible()
    dialog = await open_dialog(page)
    await dialog.get_by_label("Temperature").fill("0.3")
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(telling).to_be_visible()
    await send(page, "hello")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(2)
    await expect(telling).to_be_visible()
    await page.get_by_role("button", name="New chat").click()
    await expect(plain).to_be_visible()
    await page.go_back()
    await expect(telling).to_be_visible()


async def test_settings_leave_what_was_asked_of_the_composer(
    page: Page, fake_server: AppProcess
) -> None:
    sent = frames_of(page)
    await open_page(page, fake_server)
    await page.get_by_role("button", name="1 answer").click()
    await page.get_by_role("menuitem", name="Different temperatures").click()
    await page.get_by_role("button", name="Use for my messages").click()
    several = page.get_by_role("button", name="3 answers · T 0.3–1.3")
    await expect(several).to_be_visible()
    dialog = await open_dialog(page)
    answers = dialog.get_by_label("Answers")
    await expect(answers).to_have_value("3")
    await dialog.get_by_label("Top k").fill("7")
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(several).to_be_visible()
    await expect(dialog).to_be_hidden()
    await send(page, "hello")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    (frame,) = [frame for frame in sent if frame["type"] == "send"]
    assert frame["sampling"] == {"top_k": 7, "temperatures": [0.3, 0.8, 1.3]}
    dialog = await open_dialog(page)
    await answers.fill("1")
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_role("button", name="1 answer", exact=True)).to_be_visible()


async def test_a_conversation_keeps_its_own_settings_over_those_of_the_browser(
    page: Page, fake_server: AppProcess
) -> None:
    await page.add_init_script(
        """localStorage.setItem("pageturn.sampling", '{"temperature": 0.5, "top_k": 7}')"""
    )
    sent = frames_of(page)
    await open_page(page, fake_server)
    await say(page, "one")
    dialog = await open_dialog(page)
    await expect(dialog.get_by_role("heading")).to_have_text("Settings of this conversation")
    temperature = dialog.get_by_label("Temperature")
    await expect(temperature).to_have_value("")
    await expect(temperature).to_have_attribute("placeholder", "0.5")
    await temperature.fill("1.1")
    await dialog.get_by_label("Answers").fill("2")
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_role("button", name="Send for 2 answers")).to_be_visible()
    await expect(dialog).to_be_hidden()
    await send(page, "two")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(2)
    first, second = [frame for frame in sent if frame["type"] == "send"]
    assert first["sampling"] == {"temperature": 0.5, "top_k": 7}
    assert (second["sampling"], second["n"]) == ({"top_k": 7}, 2)
    assert (await stored(page, fake_server))["sampling"] == {"temperature": 1.1, "n": 2}
    await page.keyboard.press("1")
    await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(2)
    await page.get_by_role("button", name="Regenerate", exact=True).last.click()
    await expect(page.locator(".pt-assistant .pt-count").last).to_have_text("3/3")
    (again,) = [frame for frame in sent if frame["type"] == "regenerate"]
    assert again["n"] == 1


async def test_what_the_server_refuses_is_said_in_the_dialog(
    browser: Browser, fake_server: AppProcess
) -> None:
    context = await browser.new_context(viewport=DESKTOP)
    page = await context.new_page()
    await open_page(page, fake_server)
    await say(page, "one")
    dialog = await open_dialog(page)
    await dialog.get_by_label("Stop strings").fill("\n".join(f"s{i}" for i in range(17)))
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_contain_text("at most 16 stop strings")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await context.close()


async def test_presets_fill_the_fields_and_own_ones_stay_in_this_browser(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    dialog = await open_dialog(page)
    await dialog.get_by_role("button", name="Creative").click()
    await expect(dialog.get_by_label("Temperature")).to_have_value("1.2")
    await expect(dialog.get_by_label("Min p")).to_have_value("0.05")
    await dialog.get_by_label("Top k").fill("40")
    await dialog.get_by_label("Name of a preset").fill("Mine")
    await page.keyboard.press("Enter")
    mine = dialog.get_by_role("button", name="Mine", exact=True)
    await expect(mine).to_be_visible()
    await page.keyboard.press("Escape")
    await page.reload()
    dialog = await open_dialog(page)
    await dialog.get_by_role("button", name="Precise").click()
    await expect(dialog.get_by_label("Top k")).to_have_value("")
    await mine.click()
    await expect(dialog.get_by_label("Top k")).to_have_value("40")
    presets = dialog.get_by_role("group", name="Presets").get_by_role("button")
    await expect(presets).to_have_count(5)
    await dialog.get_by_role("button", name="Delete preset “Mine”").click()
    await expect(presets).to_have_text(["Precise", "Balanced", "Creative"])


async def test_own_presets_are_used_changed_and_deleted_in_the_settings_tab(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await page.get_by_role("tab", name="Settings").click()
    temperature = page.get_by_label("number input for Temperature")
    name = page.get_by_label("Name of a preset")
    save = page.get_by_role("button", name="Save preset")
    await temperature.fill("1.5")
    await name.fill("Bold")
    await save.click()
    bold = page.get_by_role("button", name="Bold", exact=True)
    await bold.wait_for()
    await expect(page.locator(".pt-preset-saver small")).to_have_text(
        "“Bold” is saved, in this browser."
    )
    await page.get_by_role("button", name="Precise").click()
    await expect(temperature).to_have_value("0.2")
    await expect(name).to_have_value("")
    await bold.click()
    await expect(temperature).to_have_value("1.5")
    await expect(name).to_have_value("Bold")
    await temperature.fill("1.7")
    await save.click()
    await page.get_by_role("button", name="Balanced").click()
    await expect(temperature).to_have_value("0.8")
    await page.reload()
    await page.get_by_role("tab", name="Settings").click()
    await bold.click()
    await expect(temperature).to_have_value("1.7")
    await page.get_by_role("tab", name="Chat").click()
    dialog = await open_dialog(page)
    await dialog.get_by_role("button", name="Bold", exact=True).click()
    await expect(dialog.get_by_label("Temperature")).to_have_value("1.7")
    await dialog.get_by_role("button", name="Delete preset “Bold”").click()
    await page.keyboard.press("Escape")
    await page.get_by_role("tab", name="Settings").click()
    await expect(bold).to_have_count(0)


async def test_the_defaults_of_the_browser_come_from_their_tab(
    page: Page, fake_server: AppProcess
) -> None:
    sent = frames_of(page)
    await open_page(page, fake_server)
    await page.get_by_role("tab", name="Settings").click()
    await page.get_by_role("button", name="Creative").click()
    await expect(page.get_by_label("number input for Temperature")).to_have_value("1.2")
    await page.get_by_label("System prompt of new chats").fill("Be brief.")
    await page.get_by_label("number input for Answers").fill("2")
    await page.keyboard.press("Tab")
    await page.wait_for_function("localStorage.getItem('pageturn.sampling')?.includes('\"n\":2')")
    await page.get_by_role("tab", name="Chat").click()
    await send(page, "hello")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(2)
    (frame,) = [frame for frame in sent if frame["type"] == "send"]
    assert frame["sampling"] == {"temperature": 1.2, "min_p": 0.05}
    assert (frame["n"], frame["system_prompt"]) == (2, "Be brief.")
    await page.get_by_role("tab", name="Settings").click()
    await page.get_by_role("button", name="Back to the defaults").click()
    await expect(page.get_by_label("number input for Temperature")).to_have_value("0.8")
    await expect(page.get_by_label("System prompt of new chats")).to_have_value("")


async def test_the_longest_answer_may_be_as_long_as_the_context(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await page.get_by_role("tab", name="Settings").click()
    slider = page.get_by_label("range slider for Longest answer")
    await expect(slider).to_have_attribute("max", "2048")
    await expect(slider).to_have_value("1024")


async def test_slider_thumbs_can_be_seen_in_both_themes(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await page.get_by_role("tab", name="Settings").click()
    slider = page.get_by_label("range slider for Top k")
    for scheme, colour in (("light", (79, 70, 229)), ("dark", (109, 102, 240))):
        await page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
        await expect(page.locator("body")).to_have_css(
            "background-color", "rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 17, 23)"
        )
        await expect(page.locator("body")).to_have_css("color-scheme", scheme)
        # At 0 nothing of the track is filled, so what has the colour is the thumb.
        picture = Image.open(BytesIO(await slider.screenshot())).convert("RGB")
        colours = {found: count for count, found in picture.getcolors(2**16) or []}
        assert colours.get(colour, 0) > 40


async def test_a_phone_shows_the_dialog_whole(phone: Page, fake_server: AppProcess) -> None:
    await open_page(phone, fake_server)
    dialog = await open_dialog(phone)
    box = await dialog.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert await dialog.evaluate("(d) => d.scrollWidth <= d.clientWidth")
    await expect(dialog.get_by_role("button", name="Save", exact=True)).to_be_in_viewport()


def chosen(dialog: Locator) -> Locator:
    return dialog.locator(".pt-preset-chips [aria-pressed=true]")


async def test_the_preset_that_is_in_force_is_marked(page: Page, fake_server: AppProcess) -> None:
    """Also over what this browser prefers: a preset says everything about drawing."""
    await page.add_init_script(
        """localStorage.setItem("pageturn.sampling", '{"min_p": 0.1, "temperature": 0.8}')"""
    )
    await open_page(page, fake_server)
    dialog = await open_dialog(page)
    await expect(chosen(dialog)).to_have_count(0)
    for name in ("Precise", "Creative", "Balanced"):
        await dialog.get_by_role("button", name=name, exact=True).click()
        await expect(chosen(dialog)).to_have_text(name)
    await expect(dialog.get_by_label("Min p")).to_have_value("0")
    await dialog.get_by_label("Temperature").fill("0.9")
    await expect(chosen(dialog)).to_have_count(0)
    await dialog.get_by_label("Temperature").fill("0.80")
    await expect(chosen(dialog)).to_have_text("Balanced")
    await dialog.get_by_role("button", name="Save", exact=True).click()
    dialog = await open_dialog(page)
    await expect(chosen(dialog)).to_have_text("Balanced")


async def test_the_preset_of_the_browser_is_marked_in_its_tab(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await page.get_by_role("tab", name="Settings").click()
    chips = page.locator(".pt-settings")
    await expect(chosen(chips)).to_have_text("Balanced")
    await chips.get_by_role("button", name="Precise").click()
    await expect(chosen(chips)).to_have_text("Precise")
    await page.get_by_label("number input for Temperature").fill("0.3")
    await page.keyboard.press("Tab")
    await expect(chosen(chips)).to_have_count(0)
    await page.get_by_role("button", name="Back to the defaults").click()
    await expect(chosen(chips)).to_have_text("Balanced")


async def test_what_scrolls_in_a_dialog_lies_between_its_round_corners(
    page: Page, fake_server: AppProcess
) -> None:
    await page.set_viewport_size({"width": 1000, "height": 560})
    await open_page(page, fake_server)
    dialog = await open_dialog(page)
    found = await dialog.evaluate(
        """(dialog) => {
          const outer = dialog.getBoundingClientRect();
          const radius = parseFloat(getComputedStyle(dialog).borderRadius);
          const scrolls = [dialog, ...dialog.querySelectorAll("*")].filter((part) => part.scrollHeight > part.clientHeight + 1 && getComputedStyle(part).overflowY === "auto" && part.tagName !== "TEXTAREA");
          return scrolls.map((part) => { const box = part.getBoundingClientRect(); return [box.top - outer.top >= radius, outer.bottom - box.bottom >= radius - 2]; });
        }"""
    )
    assert found == [[True, True]]
    for part in (
        dialog.get_by_role("button", name="Save", exact=True),
        dialog.get_by_role("button", name="Close"),
    ):
        await expect(part).to_be_in_viewport(ratio=1)
