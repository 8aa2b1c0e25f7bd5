"""What does the dashboard cost? `python -m benchmarks.bench_dashboard [--seconds 1.5] [--rounds 20]`

Two questions, one app with the built-in model. How long does a frame of the block map take in the browser (headless Chromium,
JavaScript of one `set`: a fiftieth of the cells changes from frame to frame, 16 conversations), at 1,024, 20,000 and 100,000
cells? And what do watchers of all three topics cost the engine: in each round nobody, one and five watch eight endless answers,
in an order that turns round from one to the next, each for `--seconds`. What counts is tokens per second and, as other load on the
machine moves it less, the server's processor time per token (all its threads): the median of what the rounds say, each
compared with itself. The last line is JSON.

To reach: under 1 ms at 1,024 cells, under 8 ms at 20,000; five watchers take less than 2 % of the throughput and of the
processor time.
"""

import argparse
import asyncio
import json
from dataclasses import asdict

from playwright.async_api import async_playwright

from benchmarks.machine import describe
from benchmarks.watched_load import COUNTS, cost, measure, medians
from ui.screenshots import CHROMIUM_FLAGS, find_chromium, running_app

SIZES = (1024, 20_000, 100_000)
MAX_MS = {1024: 1.0, 20_000: 8.0}
MAX_LOSS = 0.02
FRAMES = """async (count) => {
  const map = Pageturn.dashboard.map();
  const cells = Uint16Array.from({ length: count }, (_, i) => (i % 4 << 14) | (i % 4 > 1 ? i % 16 + 1 : 0));
  const times = [];
  for (let frame = 0; frame < 120; frame++) {
    const next = cells.slice();
    for (let i = frame % 50; i < count; i += 50) next[i] = (2 << 14) | (frame % 16 + 1);
    const started = performance.now();
    map.set(next);
    times.push(performance.now() - started);
    await new Promise(requestAnimationFrame);
  }
  times.splice(0, 20);
  return times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
}"""


async def measure_map(url: str) -> dict[int, float]:
    """Median milliseconds of JavaScript per frame, by number of cells."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=list(CHROMIUM_FLAGS)
        )
        page = await browser.new_page(viewport={"width": 1280, "height": 860})
        await page.goto(url)
        await page.wait_for_selector("[data-phase=ready]", state="attached")
        await page.get_by_role("tab", name="Dashboard").click()
        await page.wait_for_function("Pageturn.dashboard.map()?.cells.length > 0")
        await page.evaluate("Pageturn.socket.unsubscribe('blocks')")
        times = {count: round(await page.evaluate(FRAMES, count), 3) for count in SIZES}
        await browser.close()
    return times


async def main(rounds: int, seconds: float) -> None:
    with running_app() as url:
        maps = await measure_map(url)
        watched = await measure(url, rounds, seconds)
    for count, ms in maps.items():
        print(f"{count:>7} cells: {ms:6.3f} ms of JavaScript per frame")
    by_watchers = {}
    for count in COUNTS:
        interval, shares = asdict(medians(watched, count)), cost(watched, count)
        by_watchers[count] = interval | shares
        told = ", ".join(f"{share:+.1%} {name}" for name, share in shares.items())
        print(f"{count} watchers: {told}; {interval}")
    reached = {
        f"under {most:g} ms at {count} cells": maps[count] < most for count, most in MAX_MS.items()
    }
    reached |= {
        f"{COUNTS[-1]} watchers take less than {MAX_LOSS:.0%} of {name}": share < MAX_LOSS
        for name, share in cost(watched, COUNTS[-1]).items()
    }
    results = {"map_ms": maps, "by_watchers": by_watchers}
    report = {"benchmark": "dashboard", "results": results, "reached": reached}
    print(json.dumps(report | {"machine": describe()}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="what the dashboard costs")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    asyncio.run(main(options.rounds, options.seconds))
