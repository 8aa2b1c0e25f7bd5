"""What a person does in the page, in a few verbs."""

import asyncio
import json
import re

from playwright.async_api import Locator, Page, expect

from tests.e2e.app_process import AppProcess

LONG = "Write a long story about a lighthouse, with many details."
# Answers that do not end by themselves while a test still needs them.
ENDLESS = (
    """localStorage.setItem("pageturn.sampling", '{"ignore_eos": true, "max_tokens": 4000}')"""
)
ANSWER_MS = 120_000
MAP = "Pageturn.dashboard.map()"


async def open_page(page: Page, server: AppProcess) -> None:
    await page.goto(server.url)
    await page.wait_for_selector("[data-phase=ready]", state="attached")
    await page.get_by_label("Message", exact=True).wait_for()


async def send(page: Page, text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def ask_for(page: Page, count: int) -> None:
    """Let the messages to come get so many answers."""
    await page.get_by_role("button", name=re.compile(r"^\d answers?\b")).click()
    label = f"{count} answer{'' if count == 1 else 's'}"
    await page.get_by_role("menuitemradio", name=label, exact=True).click()


async def ask_three(page: Page, server: AppProcess, text: str) -> Locator:
    """A new chat whose first message is answered three times; returns the finished cards."""
    await open_page(page, server)
    await ask_for(page, 3)
    await send(page, text)
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    return page.locator(".pt-card")


def stop_button(page: Page) -> Locator:
    return page.locator(".pt-stop")


async def text_grows(part: Locator) -> None:
    """Wait for text, then for another."""
    await expect(part).to_have_text(re.compile(r"\S"), timeout=ANSWER_MS)
    before = await part.inner_text()
    await expect(part).not_to_have_text(before, use_inner_text=True, timeout=ANSWER_MS)


async def start_long_answer(page: Page, server: AppProcess) -> Locator:
    """Send a message whose answer takes a while; returns once its text grows."""
    await page.add_init_script(ENDLESS)
    await open_page(page, server)
    await send(page, LONG)
    answer = page.locator(".pt-assistant .pt-prose").last
    await text_grows(answer)
    return answer


async def stop(page: Page) -> None:
    await stop_button(page).click()
    await expect(stop_button(page)).to_be_hidden()


async def open_dashboard(page: Page) -> None:
    await page.get_by_role("tab", name="Dashboard").click()
    await expect(page.locator("[data-tile=in_use] dd").first).to_have_text(re.compile(r"\d"))
    await page.wait_for_function(f"{MAP}?.cells.length > 0")


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


async def boxes_of(page: Page, *selectors: str) -> list[dict[str, float]]:
    """Where the first of each stands, found and measured in one look: any part may be drawn anew between two."""
    return await page.evaluate(
        "(all) => all.map((each) => document.querySelector(each).getBoundingClientRect().toJSON())",
        selectors,
    )


async def placed(part: Locator) -> tuple[float, float]:
    """Where a part of the page begins and ends, from the top."""
    box = await part.bounding_box()
    assert box is not None
    return box["y"], box["y"] + box["height"]
