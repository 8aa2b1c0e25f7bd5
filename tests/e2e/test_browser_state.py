"""What the page says of the server's state, in a real browser against a scripted socket."""

import asyncio
import json
import re

import pytest
from playwright.async_api import Page, WebSocketRoute, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import open_page, send

pytestmark = pytest.mark.browser
LOADING = {"type": "loading", "stage": "compiling", "fraction": None}
READY = {"type": "ready", "protocol": 1, "model": "scripted", "max_model_len": 2048}


async def open_loading(page: Page, server: AppProcess) -> asyncio.Queue[WebSocketRoute]:
    """The page of a server whose model loads: the server's ends of its sockets, as they are opened."""
    ends: asyncio.Queue[WebSocketRoute] = asyncio.Queue()
    await page.route_web_socket(re.compile("/ws/chat"), lambda end: ends.put_nowait(end))
    await page.goto(server.url)
    await page.get_by_label("Message", exact=True).wait_for()
    return ends


def say(end: WebSocketRoute, frame: dict) -> None:
    """Send `frame` as the server."""
    end.send(json.dumps(frame))


async def test_a_stage_without_a_fraction_moves_and_counts_seconds(
    page: Page, fake_server: AppProcess
) -> None:
    ends = await open_loading(page, fake_server)
    end = await ends.get()
    say(end, LOADING)
    banner = page.locator(".pt-banner")
    bar = banner.locator("progress")
    await expect(bar).not_to_have_attribute("value", re.compile(""))
    await expect(bar).to_have_css("animation-name", "pt-march")
    await expect(banner.locator(".pt-elapsed")).to_have_text(re.compile(r"^[1-9]\d* s$"))
    await page.emulate_media(reduced_motion="reduce")
    await expect(bar).to_have_css("animation-name", "none")
    say(end, {"type": "loading", "stage": "reading", "fraction": 0.5})
    await expect(bar).to_have_js_property("value", 0.5)
    await expect(banner.locator(".pt-elapsed")).to_be_hidden()
    say(end, READY)
    await expect(banner).to_be_hidden()


async def test_the_dashboard_tells_too_that_the_model_loads(
    page: Page, fake_server: AppProcess
) -> None:
    ends = await open_loading(page, fake_server)
    end = await ends.get()
    say(end, LOADING)
    await page.get_by_role("tab", name="Dashboard").click()
    dashboard = page.get_by_label("Dashboard", exact=True).last
    engine = dashboard.locator(".pt-engine")
    await expect(engine).to_have_text("The model is loading: compiling.")
    caption = dashboard.locator(".pt-hover")
    await expect(caption).to_have_text("The map is drawn when the model is ready.")
    await expect(dashboard.get_by_role("button", name="Zoom in")).to_be_hidden()
    say(end, READY)
    end.send(bytes(64))
    await expect(dashboard.get_by_role("button", name="Zoom in")).to_be_visible()
    await expect(caption).to_have_text(re.compile("^Point at a block"))
    await end.close()
    await expect(engine).to_have_text("The connection to the server was lost. Reconnecting…")


async def test_what_kept_a_message_back_is_said_until_it_is_over(
    page: Page, fake_server: AppProcess
) -> None:
    ends = await open_loading(page, fake_server)
    end = await ends.get()
    say(end, LOADING)
    status = page.locator(".pt-status")
    box = page.get_by_label("Message", exact=True)
    await box.fill("hello")
    await box.press("Enter")
    waiting = page.locator(".pt-pending")
    await expect(waiting).to_contain_text("Will be sent when the model is ready.")
    await box.fill("more")
    await box.press("Enter")
    await expect(status).to_have_text("Your last message waits to be sent.")
    await waiting.get_by_role("button", name="Edit").click()
    await expect(box).to_have_value("hello\nmore")
    await expect(status).to_have_text("")
    await box.press("Enter")
    await expect(waiting).to_contain_text("hello more")
    await box.fill("again")
    await box.press("Enter")
    await expect(status).to_have_text("Your last message waits to be sent.")
    say(end, READY)
    await expect(waiting.locator(".pt-note")).to_have_count(0)
    await expect(status).to_have_text("")
    await expect(box).to_have_value("again")


async def test_an_answer_cut_by_the_length_limit_is_not_called_complete(
    page: Page, fake_server: AppProcess
) -> None:
    await page.add_init_script("""localStorage.setItem("pageturn.sampling", '{"max_tokens": 5}')""")
    await open_page(page, fake_server)
    await send(page, "a short one")
    await expect(page.locator(".pt-assistant .pt-note")).to_have_text(
        "The length limit was reached here."
    )
    await expect(page.locator(".pt-status")).to_have_text("The answer reached the length limit.")


async def test_how_an_answer_ended_is_said_also_when_the_conversation_told_first_that_it_has(
    page: Page, fake_server: AppProcess
) -> None:
    def join(end: WebSocketRoute) -> None:
        """The last frame of a generation comes behind that of its conversation."""
        server = end.connect_to_server()
        held: list[str | bytes] = []
        told = False

        def pass_on(data: str | bytes) -> None:
            nonlocal told
            frame = json.loads(data) if isinstance(data, str) else {"type": "blocks"}
            if frame["type"] == "finished":
                held.append(data)
            else:
                end.send(data)
            told |= frame["type"] == "conversation" and frame["generation_id"] is None
            while told and held:
                end.send(held.pop(0))

        server.on_message(pass_on)
        end.on_message(server.send)

    await page.route_web_socket(re.compile("/ws/chat"), join)
    await open_page(page, fake_server)
    await send(page, "a short one")
    await expect(page.locator(".pt-status")).to_have_text("The answer is complete.")


async def test_a_message_written_while_the_model_loads_is_sent_by_itself(
    page: Page, fake_server: AppProcess
) -> None:
    ends = await open_loading(page, fake_server)
    end = await ends.get()
    sent: asyncio.Queue[dict] = asyncio.Queue()
    end.on_message(lambda text: sent.put_nowait(json.loads(text)))
    say(end, LOADING)
    await expect(page.locator(".pt-banner")).to_contain_text("compiling")
    await send(page, "hello")
    await expect(page.locator(".pt-pending")).to_contain_text("Will be sent")
    say(end, READY)
    while (frame := await asyncio.wait_for(sent.get(), 10))["type"] != "send":
        pass
    assert frame["content"] == "hello"
    await expect(page.locator(".pt-pending")).not_to_contain_text("Will be sent")


async def open_answering(page: Page, server: AppProcess) -> WebSocketRoute:
    """The page while an answer is written: the server's end of its socket."""
    ends = await open_loading(page, server)
    end = await ends.get()
    asked: asyncio.Queue[dict] = asyncio.Queue()
    end.on_message(lambda text: asked.put_nowait(json.loads(text)))
    say(end, READY)
    await send(page, "hello")
    while (frame := await asyncio.wait_for(asked.get(), 10))["type"] != "send":
        pass
    started = {"conversation_id": "c", "user_message_id": "u", "generation_id": "g"}
    candidates = [{"index": 0, "message_id": "a"}]
    echo = {"request_id": frame["request_id"], "dropped_messages": 0, "candidates": candidates}
    say(end, {"type": "started", **started, **echo})
    say(end, {"type": "conversation", **view_of("hello")})
    return end


async def test_while_the_prompt_is_read_the_page_shows_how_far(
    page: Page, fake_server: AppProcess
) -> None:
    end = await open_answering(page, fake_server)
    progress = page.locator(".pt-assistant .pt-progress")
    for computed in (512, 1024):
        counts = {"computed_tokens": computed, "prompt_tokens": 2000}
        say(end, {"type": "progress", "generation_id": "g", "seq": 0, **counts})
        await expect(progress).to_contain_text(f"{computed:,} of 2,000 tokens")
        await expect(progress.locator("progress")).to_have_js_property("value", computed)
    part = {"index": 0, "html": "", "tail": "<p>Well</p>"}
    say(end, {"type": "render", "generation_id": "g", "seq": 1, **part})
    await expect(progress).to_have_count(0)
    await expect(page.locator(".pt-assistant .pt-prose")).to_have_text("Well")


async def test_an_answer_that_the_servers_end_cuts_is_not_called_stopped(
    page: Page, fake_server: AppProcess
) -> None:
    end = await open_answering(page, fake_server)
    part = {"index": 0, "html": "<p>Well</p>", "tail": "", "text": "Well", "final": True}
    say(end, {"type": "render", "generation_id": "g", "seq": 0, **part})
    ending = {"index": 0, "status": "interrupted", "finish_reason": "abort"}
    kv = {"blocks_private": 0, "blocks_shared": 0, "blocks_released": 4, "release_ms": 0.1}
    facts = {"usage": None, "timings": None, "kv": kv}
    say(end, {"type": "candidate", "generation_id": "g", "seq": 1, **ending, **facts})
    say(end, {"type": "finished", "generation_id": "g", "seq": 2})
    answer = page.locator(".pt-assistant")
    await expect(answer).to_have_attribute("data-status", "interrupted")
    await expect(answer).to_contain_text("Interrupted: the server stopped")
    await expect(answer).not_to_contain_text("freed")
    said = "Interrupted: the server was stopped."
    await expect(page.locator(".pt-status")).to_have_text(said)


def view_of(text: str) -> dict:
    """A conversation whose one answer is being written."""
    conversation = {
        "id": "c",
        "title": text,
        "pinned": False,
        "running": True,
        "system_prompt": None,
        "when_full": "stop",
        "sampling": {},
        "head_id": "a",
        "open_generation_id": None,
    }
    common = {"usage": None, "timings": None, "kv": None, "finish_reason": None, "error": None}
    common |= {"seed": None, "sampling": None, "model": None, "dropped_messages": None}
    user = {"id": "u", "parent_id": None, "role": "user", "content": text, "status": "done"}
    answer = {"id": "a", "parent_id": "u", "role": "assistant", "content": "", "html": ""}
    messages = [
        {**common, **user, "html": "", "generation_id": None, "candidate_index": None},
        {**common, **answer, "status": "generating", "generation_id": "g", "candidate_index": 0},
    ]
    for message in messages:
        message["sibling_ids"] = [message["id"]]
    return {
        "conversation": conversation,
        "messages": messages,
        "candidates": [],
        "generation_id": "g",
    }
