"""The shell: islands without executable templates, no component that costs a connection, files where the page asks.

Gradio is looked at in a child process: importing it leaves event loops and sockets behind.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ui.static_files import SCRIPTS, STATIC, STYLES, script_bundle, style_bundle

ISLANDS = STATIC.parent / "islands"
ROOT = STATIC.parents[1]
LOOK = """
import asyncio, json, sys, httpx

stubs = []
sys.addaudithook(lambda event, args: stubs.append(str(args[0])) if event == "open" and str(args[0]).endswith(".pyi") else None)
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from ui.page import build_ui, mount

async def get(app, path):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://page") as client:
        return await client.get(path)

async def answer_unknown(request, error):
    return PlainTextResponse(f"{request.method} {request.url.path}", 418)

page = build_ui()
app = mount(FastAPI(), answer_unknown)
shell = next(route.app for route in app.routes if hasattr(getattr(route, "app", None), "get_blocks"))
queue = shell.get_blocks()._queue
script = asyncio.run(get(app, "/static/pageturn/all.js"))
print(json.dumps({
    "stubs": stubs,
    "kinds": sorted({type(block).__name__ for block in page.blocks.values()}),
    "python_events": [event.api_name for event in page.fns.values() if event.fn is not None],
    "queue_intervals": [queue.sleep_when_free, queue.progress_update_sleep_when_free],
    "analytics": page.analytics_enabled,
    "html": asyncio.run(get(app, "/")).text,
    "nothing": asyncio.run(get(app, "/nothing")).text,
    "script": {"text": script.text, "type": script.headers["content-type"], "cache": script.headers["cache-control"]},
    "style": asyncio.run(get(app, "/static/pageturn/all.css")).text,
    "icon": asyncio.run(get(app, "/static/pageturn/favicon.svg")).status_code,
}))
"""


@pytest.fixture(scope="module")
def seen() -> dict:
    """What a child found in the page."""
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_opens_a_connection_or_asks_the_server_by_itself(seen: dict) -> None:
    assert set(seen["kinds"]).isdisjoint({"State", "BrowserState", "Timer", "Chatbot", "LinePlot"})
    assert {"Sidebar", "Tabs", "HTML", "Slider"} <= set(seen["kinds"])
    assert seen["python_events"] == []
    assert seen["queue_intervals"] == [0.05, 0.05]
    assert seen["analytics"] is False


def test_what_is_not_there_is_answered_by_who_mounted_the_page(seen: dict) -> None:
    assert seen["nothing"] == "GET /nothing"


def test_the_start_does_not_wait_for_stub_files_of_gradio(seen: dict) -> None:
    assert seen["stubs"] == []


def test_the_page_needs_one_script_and_one_style_named_by_their_content(seen: dict) -> None:
    addresses = re.findall(r"static/pageturn/[^\\\"]+\.(?:js|css)[^\\\"]*", seen["html"])
    assert addresses == [style_bundle().address, script_bundle().address]
    assert all(re.search(r"\?v=[0-9a-f]{12}$", address) for address in addresses)
    assert seen["script"]["text"] == "\n".join((STATIC / name).read_text() for name in SCRIPTS)
    assert seen["script"]["type"] == "text/javascript; charset=utf-8"
    assert "immutable" in seen["script"]["cache"]
    assert seen["style"] == "\n".join((STATIC / name).read_text() for name in STYLES)
    assert seen["icon"] == 200


def test_the_page_fetches_nothing_from_elsewhere(seen: dict) -> None:
    fetched = re.findall(
        r"<(?:script|link|img)[^>]*(?:src|href)=\"(https?:(?!//page)[^\"]+)", seen["html"]
    )
    assert fetched == []


@pytest.mark.parametrize("path", sorted(ISLANDS.iterdir()), ids=lambda path: path.name)
def test_islands_are_static_markup(path: Path) -> None:
    markup = path.read_text()
    assert "${" not in markup
    assert "{{" not in markup
    assert not re.search(r"\son\w+=", markup)


def test_every_file_is_known_and_the_first_and_last_script_stand_right() -> None:
    files = {path.name for path in STATIC.iterdir()}
    assert files == {*SCRIPTS, *STYLES, "favicon.svg"}
    assert SCRIPTS[0] == "core.js"
    assert SCRIPTS[-1] == "start.js"


def test_markup_is_written_in_one_file_only() -> None:
    """`innerHTML` takes what the server has sanitised; everything else is built from elements and text."""
    writers = {
        path.name
        for path in STATIC.glob("*.js")
        if re.search(r"innerHTML|insertAdjacentHTML|outerHTML", path.read_text())
    }
    assert writers == {"messages.js"}
