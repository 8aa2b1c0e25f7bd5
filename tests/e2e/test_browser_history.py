"""The dashboard's past in a real browser: lines, a range, what is new, the file."""

import csv
import io
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import open_dashboard, open_page, send

pytestmark = pytest.mark.browser


async def test_history_draws_selects_and_exports(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    await send(page, "hello")
    await expect(page.locator(".pt-assistant[data-status=done]")).to_have_count(1)
    await open_dashboard(page)
    charts = page.locator(".pt-chart canvas")
    await expect(charts).to_have_count(6)
    note = page.locator(".pt-history-note")
    await expect(note).to_have_text(re.compile(r"One point every 2 seconds"))
    await page.get_by_role("button", name="Day").click()
    await expect(note).to_have_text(re.compile(r"One point every 2 minutes"))
    await expect(page.get_by_role("button", name="Day")).to_have_attribute("aria-pressed", "true")
    await page.get_by_role("button", name="15 minutes").click()
    await expect(note).to_have_text(re.compile(r"One point every 2 seconds"))
    await charts.first.scroll_into_view_if_needed()
    box = await charts.first.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] + 5, box["y"] + 40)
    await page.mouse.up()
    await expect(note).to_have_text(re.compile(r"One point a second"))
    async with page.expect_download() as waiting:
        await page.get_by_role("link", name="CSV").click()
    download = await waiting.value
    rows = list(csv.DictReader(io.StringIO(Path(await download.path()).read_text())))
    assert rows
    assert {"time", "utilisation", "itl_p95_ms"} <= rows[0].keys()
    await page.get_by_role("button", name="Whole range").click()
    await expect(note).to_have_text(re.compile(r"One point every 2 seconds"))


DRAW = """(rows) => {
  const { prototype } = CanvasRenderingContext2D;
  const { moveTo, lineTo } = prototype;
  const element = document.querySelector(".pt-charts").appendChild(document.createElement("section"));
  const chart = new Pageturn.LineChart(element, { title: "", lines: [["", (row) => row.value]], least: 10, most: 10, format: String, crosshair: { time: null, from: null } });
  chart.grid = () => {};
  const drawn = [];
  prototype.moveTo = (x, y) => drawn.push(["to", Math.round(x + 0.75), y]);
  prototype.lineTo = (x, y) => drawn.push(["line", Math.round(x), y]);
  chart.set({ start: 0, end: chart.canvas.clientWidth, step: 2, rows });
  Object.assign(prototype, { moveTo, lineTo });
  element.remove();
  return drawn.map(([kind, x, y]) => [kind, x, Math.round((102 - y) / 9.4)]);
}"""


async def test_a_line_steps_where_rows_are_rare_and_breaks_at_gaps(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await open_dashboard(page)
    known = [{"time": 40, "value": 2, "after_gap": False}]
    assert await page.evaluate(DRAW, known) == [["to", 1, 2], ["line", 40, 2]]
    rows = [(10, 5, True), (12, 7, False), (60, 0, False), (62, None, False), (64, 3, False)]
    rows += [(66, 4, True)]
    told = [{"time": t, "value": value, "after_gap": gap} for t, value, gap in rows]
    assert await page.evaluate(DRAW, told) == [
        *(["to", 10, 5], ["line", 10, 5], ["line", 12, 7]),
        *(["line", 12, 0], ["line", 60, 0]),
        *(["to", 64, 3], ["line", 64, 3]),
        *(["to", 66, 4], ["line", 66, 4]),
    ]


GROW = """async (answers) => {
  const { h } = Pageturn;
  const panel = h("section", {}, h("p", { class: "pt-history-note" }), h("div", { class: "pt-windows" }), h("div", { class: "pt-charts" }));
  const { api } = Pageturn;
  const asked = [];
  const shown = [];
  Pageturn.api = async (method, path) => asked.push(path) && answers[asked.length - 1];
  const history = new Pageturn.HistoryPanel(panel);
  for (const _ of answers) {
    await history.refresh();
    shown.push(history.history.rows.map((row) => [row.time, row.blocks]));
  }
  Pageturn.api = api;
  return [asked, shown];
}"""


async def test_the_history_grows_by_what_is_new(page: Page, fake_server: AppProcess) -> None:
    """What is out of the window goes, what has changed since the last point is replaced, what is new comes."""
    await open_page(page, fake_server)
    await open_dashboard(page)

    def answer(start: int, since: int, *rows: tuple[int, int]) -> dict[str, object]:
        fields = ["time", "after_gap", "blocks"]
        told = [[time, False, blocks] for time, blocks in rows]
        span: dict[str, object] = {"start": start, "since": since, "end": start + 900}
        return span | {"step": 2, "fields": fields, "rows": told}

    answers = [
        answer(100, 100, (103, 1), (105, 2), (106, 3)),
        answer(104, 106, (107, 4), (109, 5)),
        answer(2000, 2000, (2001, 6)),
    ]
    asked, shown = await page.evaluate(GROW, answers)
    window = "history?window=15m"
    assert asked == [window, f"{window}&since=106", f"{window}&since=109"]
    assert shown == [
        [[103, 1], [105, 2], [106, 3]],
        [[105, 2], [107, 4], [109, 5]],
        [[2001, 6]],
    ]
