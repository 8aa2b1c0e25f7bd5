"""Hostile texts in a real browser, as messages, titles and system prompts: nothing runs, nothing is fetched, nothing moves."""

import asyncio
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, Request, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import ask_for, open_page, send
from tests.e2e.conftest import Complaints
from tests.e2e.hostile import TEXTS

pytestmark = pytest.mark.browser
PER_CONVERSATION = 12
LONGEST_STREAMED = 700
NUM_WINDOWS = 4
ELEMENTS = "img, script, iframe, object, embed, video, style, link, meta, form:not(.pt-dialog form), svg:not(.pt-icon), base, template"

# Everything that would show that a text has become more than text.
SPOILED = f"""() => {{
  const wide = [...document.querySelectorAll('.pt-message, .pt-card, .pt-conversation, .pt-dialog, .pt-composer')]
    .filter((part) => part.offsetParent && part.getBoundingClientRect().right > innerWidth + 1)
    .map((part) => `${{part.className}} is ${{part.getBoundingClientRect().right}} wide`);
  const page = document.documentElement;
  return [
    ...(window.hacked === undefined ? [] : ['a script ran']),
    ...[...document.querySelectorAll('.pt-log, .pt-list, .pt-dialog')].flatMap((part) => [...part.querySelectorAll('{ELEMENTS}')].map((found) => found.outerHTML.slice(0, 80))),
    ...[...document.querySelectorAll('.pt-log *')].flatMap((part) => [...part.attributes].filter(({{ name, value }}) => name.startsWith('on') || /^\\s*(javascript|data|vbscript):/i.test(value)).map(({{ name }}) => name)),
    ...(page.scrollWidth > innerWidth ? [`the page is ${{page.scrollWidth}} wide`] : []),
    ...(page.scrollHeight > innerHeight ? [`the page is ${{page.scrollHeight}} high`] : []),
    ...(document.querySelector('.pt-input').getBoundingClientRect().bottom > innerHeight ? ['the composer is gone'] : []),
    ...wide,
  ];
}}"""


def watch_requests(page: Page, server: AppProcess) -> list[str]:
    """Addresses outside of the server that the page asks for from now on."""
    foreign: list[str] = []
    host = urlsplit(server.url).netloc

    def note(request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.netloc != host:
            foreign.append(request.url)

    page.on("request", note)
    return foreign


def chunks(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), size):
        yield texts[start : start + size]


def imported(server: AppProcess, texts: Sequence[str], title: str) -> str:
    """A conversation whose messages are `texts`, each said by both; returns its id."""
    messages, parent = [], None
    for number, text in enumerate(texts):
        for role in ("user", "assistant"):
            identity = f"{role}{number}"
            messages.append(
                {
                    "id": identity,
                    "parent_id": parent,
                    "role": role,
                    "content": text,
                    "status": "done",
                }
            )
            parent = identity
    document = {
        "format": "pageturn.conversation",
        "version": 1,
        "conversation": {
            "title": " ".join(title.split())[:200] or "nothing",
            "system_prompt": title,
            "sampling": {},
            "pinned": False,
            "head_id": parent,
        },
        "messages": messages,
    }
    return server.post("/api/conversations/import?again=true", document)["conversation_ids"][0]


async def open_each(page: Page, server: AppProcess) -> None:
    """Open conversations that together show every text, and look at each."""
    foreign = watch_requests(page, server)
    await open_page(page, server)
    for part in chunks(TEXTS, PER_CONVERSATION):
        identity = await asyncio.to_thread(imported, server, part, part[0])
        await page.evaluate("(id) => Pageturn.chat.open(id)", identity)
        await expect(page.locator(".pt-message")).to_have_count(2 * len(part))
        assert await page.evaluate(SPOILED) == [], part
        await page.get_by_role("button", name="Settings of this conversation").click()
        await expect(page.get_by_role("dialog").get_by_label("System prompt")).to_have_value(
            part[0].replace("\r\n", "\n").replace("\r", "\n")
        )
        assert await page.evaluate(SPOILED) == [], part
        await page.keyboard.press("Escape")
    assert foreign == []


async def test_a_script_or_handler_that_the_server_has_not_written_does_not_run(
    browser: Browser, fake_server: AppProcess
) -> None:
    page = await browser.new_page()
    await open_page(page, fake_server)
    await page.evaluate("""() => {
        window.violations = [];
        document.addEventListener("securitypolicyviolation", (event) => violations.push(event.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "window.hacked = 1";
        const button = document.createElement("button");
        button.setAttribute("onclick", "window.hacked = 2");
        document.body.append(script, button);
        button.click();
    }""")
    await page.wait_for_function("violations.length === 2")
    assert sorted(await page.evaluate("violations")) == ["script-src-attr", "script-src-elem"]
    assert await page.evaluate("window.hacked") is None
    await page.context.close()


async def test_hostile_texts_stay_text_on_a_wide_page(page: Page, fake_server: AppProcess) -> None:
    await open_each(page, fake_server)


async def test_hostile_texts_stay_text_on_a_phone(phone: Page, fake_server: AppProcess) -> None:
    await open_each(phone, fake_server)


async def test_hostile_texts_stay_text_as_titles(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    for text in TEXTS:
        await asyncio.to_thread(imported, fake_server, ["x"], text)
    await expect(page.locator(".pt-conversation")).to_have_count(len(TEXTS))
    assert await page.evaluate(SPOILED) == []


async def test_hostile_texts_stay_text_while_they_stream(
    page: Page, fake_server: AppProcess
) -> None:
    fitting = [text for text in TEXTS if len(text.encode()) < LONGEST_STREAMED and text.strip()]
    assert len(fitting) >= 60
    windows = [page, *[await page.context.new_page() for _ in range(NUM_WINDOWS - 1)]]
    foreign = [watch_requests(window, fake_server) for window in windows]
    complaints = [Complaints(window) for window in windows]
    for window in windows:
        # What is loaded behind another window is hardly ever drawn.
        await window.bring_to_front()
        await open_page(window, fake_server)
    async with asyncio.TaskGroup() as group:
        for number, window in enumerate(windows):
            group.create_task(stream_each(window, fitting[number::NUM_WINDOWS]))
    assert not any(foreign)
    assert not any(each.lines for each in complaints)


async def stream_each(page: Page, texts: Sequence[str]) -> None:
    """Let `texts` be answered one after another, each in a new chat."""
    for text in texts:
        await page.evaluate("() => Pageturn.chat.open(null)")
        await expect(page.locator(".pt-message")).to_have_count(0)
        await send(page, f"echo {text}")
        # `expect` would look twice in a second; this sees the end when it comes.
        await page.locator(".pt-assistant[data-status=done]").wait_for()
        assert await page.evaluate(SPOILED) == [], text


async def test_hostile_candidates_are_compared_and_stay_text(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await ask_for(page, 3)
    await send(page, "hostile")
    await expect(page.locator(".pt-card[data-status=done]")).to_have_count(3)
    await page.get_by_role("button", name="Compare").click()
    await expect(page.locator(".pt-leaves")).to_have_count(3)
    assert await page.evaluate(SPOILED) == []


async def test_using_the_whole_page_asks_nobody_but_the_server(
    page: Page, fake_server: AppProcess
) -> None:
    foreign = watch_requests(page, fake_server)
    await open_page(page, fake_server)
    await send(page, "quick markdown")
    await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(1)
    for tab in ("Dashboard", "Settings", "Chat"):
        await page.get_by_role("tab", name=tab).click()
    await page.reload()
    await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(1)
    assert foreign == []
