"""The dashboard in a real browser, wide, dark and on a phone, against the scripted engine."""

import re

import pytest
from playwright.async_api import Page, Position, expect

from tests.e2e.app_process import AppProcess
from tests.e2e.browsing import MAP, boxes_of, open_dashboard, open_page, start_long_answer, stop

pytestmark = pytest.mark.browser

SET = f"""([count, cell]) => {{ const map = {MAP}; map.set(new Uint16Array(count).fill(cell)); }}"""
LAYOUT = f"(() => {{ const m = {MAP}; return [m.perCell, m.size, m.columns * m.rows * m.perCell, m.canvas.clientHeight]; }})()"
FREE, CACHED, PRIVATE, SHARED = 0, 1 << 14, 2 << 14, 3 << 14


async def colour_of(page: Page, index: int) -> list[int]:
    """The middle of a block's cell."""
    return await page.evaluate(
        f"""(index) => {{
          const map = {MAP};
          const ratio = devicePixelRatio;
          const cell = Math.round(map.size * ratio);
          const [x, y] = [(index % map.columns) * cell + cell * 0.2, Math.floor(index / map.columns) * cell + cell * 0.2];
          return [...map.canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3);
        }}""",
        index,
    )


async def test_every_tile_says_what_it_means(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    await open_dashboard(page)
    tiles = page.locator(".pt-tile")
    await expect(tiles).to_have_count(12)
    for index in range(12):
        tile = tiles.nth(index)
        tip = tile.locator(".pt-tip")
        await expect(tip).to_be_hidden()
        await tile.focus()
        await expect(tip).to_be_visible()
        assert len(await tip.inner_text()) > 30
        box = await tip.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1280


async def test_a_block_tells_whose_it_is_and_opens_the_conversation(
    page: Page, fake_server: AppProcess
) -> None:
    answer = await start_long_answer(page, fake_server)
    await open_dashboard(page)
    await page.wait_for_function(f"{MAP}.cells[2] >> 14 === 2")
    await page.locator(".pt-map").scroll_into_view_if_needed()
    at = await page.evaluate(f"[{MAP}.size * 2.4, {MAP}.size * 0.4]")
    position: Position = {"x": at[0], "y": at[1]}
    await page.locator(".pt-map").hover(position=position)
    caption = page.locator(".pt-hover")
    await expect(caption).to_have_text(
        re.compile(
            r"Block 2: private · 1 reference · 16 tokens · Write a long story.* \(answer A, block 3 of it\)"
        )
    )
    await page.get_by_role("button", name="New chat").click()
    await page.get_by_role("tab", name="Dashboard").click()
    await page.locator(".pt-map").click(position=position)
    await expect(answer).to_be_visible()
    await expect(page.get_by_role("tab", name="Chat")).to_have_attribute("aria-selected", "true")
    await stop(page)


async def test_keys_move_over_the_map(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    await open_dashboard(page)
    await page.locator(".pt-map").focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await expect(page.locator(".pt-hover")).to_have_text("Block 1: free · 0 references · 0 tokens")
    await page.keyboard.press("ArrowDown")
    columns = await page.evaluate(f"{MAP}.columns")
    await expect(page.locator(".pt-hover")).to_have_text(re.compile(rf"Block {columns + 1}: free"))


async def test_a_request_is_listed_with_its_life_and_stopped(
    page: Page, fake_server: AppProcess
) -> None:
    await start_long_answer(page, fake_server)
    await open_dashboard(page)
    row = page.locator("tr[data-request]").filter(has_text="Write a long story").first
    await expect(row.locator("td").nth(1)).to_have_text("running")
    swatch = await row.locator(".pt-swatch").evaluate(
        "(each) => getComputedStyle(each).backgroundColor"
    )
    assert [int(part) for part in re.findall(r"\d+", swatch)] == await colour_of(page, 0)
    name = row.locator(".pt-row-name")
    await row.locator("td").nth(4).click()
    timeline = page.locator(".pt-timeline")
    await expect(timeline.locator("li[data-kind]")).to_have_count(2)
    await expect(timeline.locator("li").first).to_contain_text("queued, 3 prompt tokens")
    await expect(timeline.locator("svg.pt-curve")).to_be_visible()
    await expect(timeline.locator(".pt-scale-blocks span").first).to_have_text(
        re.compile(r"^\d+ blocks?$")
    )
    times = timeline.locator(".pt-scale-time span")
    await expect(times).to_have_text(["0", *[re.compile(r"^[\d.]+ m?s$")] * 4])
    await expect(page.locator("tr[data-request] + tr.pt-life")).to_have_count(1)
    await expect(name).to_have_attribute("aria-expanded", "true")
    above, below = await boxes_of(page, "tr[data-request]", ".pt-timeline")
    assert 0 <= below["top"] - above["bottom"] < 10
    await name.focus()
    await page.keyboard.press("Enter")
    await expect(timeline).to_be_hidden()
    await expect(name).to_have_attribute("aria-expanded", "false")
    await page.keyboard.press("Enter")
    await expect(timeline.locator("li[data-kind]")).to_have_count(2)
    await row.get_by_role("button", name="Stop").click()
    await expect(page.locator(".pt-dashboard tbody tr").first).to_have_text("No live requests")
    await expect(timeline).to_be_hidden()
    await page.get_by_role("tab", name="Chat").click()
    await expect(page.locator(".pt-assistant .pt-note").last).to_have_text(re.compile("Stopped"))


async def test_a_renamed_conversation_is_called_by_its_new_name(
    page: Page, fake_server: AppProcess
) -> None:
    await start_long_answer(page, fake_server)
    await open_dashboard(page)
    number = await page.locator("tr[data-request]").first.get_attribute("data-request")
    row = page.locator(f'tr[data-request="{number}"]')
    await row.locator(".pt-row-name").click()
    heading = page.locator(".pt-timeline h4")
    await expect(heading).to_contain_text("Write a long story")
    rename = "Pageturn.api('PATCH', `conversations/${Pageturn.chat.openId()}`, {title: 'Lamps'})"
    await page.evaluate(rename)
    await expect(row.locator(".pt-row-name")).to_have_text("Lamps")
    await expect(row.get_by_role("button", name="Stop Lamps", exact=True)).to_be_visible()
    await expect(row.get_by_role("button", name="Open Lamps", exact=True)).to_be_visible()
    await expect(heading).to_have_text("Lamps")
    await page.wait_for_function(f"{MAP}.cells[0] >> 14 === 2")
    await page.evaluate(f"{MAP}.select(0)")
    await expect(page.locator(".pt-hover")).to_contain_text("Lamps (answer A, block 1 of it)")
    await page.get_by_role("tab", name="Chat").click()
    await stop(page)


@pytest.mark.parametrize(
    ("count", "per_cell"), [(16, 1), (1024, 1), (10_000, 1), (20_000, 2), (100_000, 6)]
)
async def test_a_map_of_any_size_fits(
    page: Page, fake_server: AppProcess, count: int, per_cell: int
) -> None:
    await open_page(page, fake_server)
    await open_dashboard(page)
    await page.evaluate(SET, [count, PRIVATE | 5])
    shown_per_cell, size, room, height = await page.evaluate(LAYOUT)
    assert (shown_per_cell, size >= 4, room >= count) == (per_cell, True, True)
    assert height <= 330
    blue = await colour_of(page, 3)
    assert max(blue) - min(blue) > 60
    if per_cell > 1:
        await expect(page.locator(".pt-zoom")).to_contain_text(f"{per_cell} blocks a cell")
        await page.evaluate(f"{MAP}.pick(500)")
        await expect(page.locator(".pt-zoom")).to_contain_text(
            re.compile(r"blocks [\d,]+ to [\d,]+")
        )
        await page.get_by_role("button", name="Later blocks").click()
        first = await page.evaluate(f"{MAP}.span()[0]")
        assert first > 0
        for _ in range(4):
            if await page.get_by_role("button", name="Zoom out").is_hidden():
                break
            await page.get_by_role("button", name="Zoom out").click()
        await expect(page.locator(".pt-zoom")).to_contain_text(f"{per_cell} blocks a cell")


async def test_zooming_begins_where_the_pool_is_filled_first(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    await open_dashboard(page)
    await page.evaluate(SET, [1000, PRIVATE | 5])
    await page.get_by_role("button", name="Zoom in").click()
    await expect(page.locator(".pt-zoom")).to_contain_text("blocks 0 to 499")
    await page.get_by_role("button", name="Zoom in").click()
    await expect(page.locator(".pt-zoom")).to_contain_text("blocks 125 to 374")


RATES = """() => {
    const tiles = new Pageturn.Tiles(document.createElement("dl"));
    const frames = [[0, 0], [5, 100], [10, 200], [15, 200], [20, 200], [20, 200]];
    return frames.map(([time, generated_tokens]) => {
        tiles.note({ time, counters: { generated_tokens } });
        return tiles.rate("generated_tokens");
    });
}"""


async def test_rates_are_of_the_last_ten_seconds(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    assert await page.evaluate(RATES) == [0, 20, 20, 10, 0, 0]


async def test_a_small_share_does_not_look_like_none(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    shares = [[0, 1], [1, 10_000], [6, 10_000], [1, 20], [1, 3], [1, 0]]
    shown = await page.evaluate("(all) => all.map(([a, b]) => Pageturn.percent(a, b))", shares)
    assert shown == ["0 %", "< 0.1 %", "0.1 %", "5.0 %", "33 %", "–"]


async def test_what_has_just_been_taken_flashes_once(page: Page, fake_server: AppProcess) -> None:
    await page.emulate_media(reduced_motion="no-preference")
    await open_page(page, fake_server)
    await open_dashboard(page)
    await page.evaluate(SET, [64, FREE])
    await page.evaluate(SET, [64, PRIVATE | 1])
    assert await page.evaluate(f"{MAP}.flashes.size") == 64
    await page.wait_for_function(f"{MAP}.flashes.size === 0")
    await page.evaluate(SET, [64, SHARED | 1])
    assert await page.evaluate(f"{MAP}.flashes.size") == 0


async def test_less_motion_means_no_flash(page: Page, fake_server: AppProcess) -> None:
    await page.emulate_media(reduced_motion="reduce")
    await open_page(page, fake_server)
    await open_dashboard(page)
    await page.evaluate(SET, [64, FREE])
    await page.evaluate(SET, [64, PRIVATE | 1])
    assert await page.evaluate(f"{MAP}.flashes.size") == 0


async def test_states_look_different_in_both_themes(page: Page, fake_server: AppProcess) -> None:
    await page.emulate_media(reduced_motion="reduce")
    await open_page(page, fake_server)
    await open_dashboard(page)
    seen = {}
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme=theme)
        await page.wait_for_function(
            f"document.body.classList.contains('dark') === {str(theme == 'dark').lower()}"
        )
        for name, cell in (("free", FREE), ("cached", CACHED), ("private", PRIVATE | 7)):
            await page.evaluate(SET, [64, cell])
            seen[theme, name] = await colour_of(page, 9)
        await page.evaluate(SET, [64, SHARED | 7])
        patches = await page.evaluate(
            f"""(() => {{ const m = {MAP}; const d = m.canvas.getContext("2d").getImageData(0, 0, m.size, m.size).data;
              return new Set(Array.from({{ length: d.length / 4 }}, (_, i) => d.slice(4 * i, 4 * i + 3).join())).size; }})()"""
        )
        assert patches > 3, "a shared block is hatched"
    for theme in ("light", "dark"):
        colours = [seen[theme, name] for name in ("free", "cached", "private")]
        distances = [
            sum(abs(a - b) for a, b in zip(colours[i], colours[j], strict=True))
            for i, j in ((0, 1), (0, 2), (1, 2))
        ]
        assert min(distances) > 90, (theme, colours)
    assert seen["light", "free"] != seen["dark", "free"]


async def test_nothing_is_sent_to_a_tab_that_is_not_seen(
    page: Page, fake_server: AppProcess
) -> None:
    frames: list[str | bytes] = []
    page.on(
        "websocket",
        lambda socket: socket.on("framereceived", lambda payload: frames.append(payload)),
    )
    await start_long_answer(page, fake_server)
    await open_dashboard(page)
    await page.get_by_role("tab", name="Settings").click()
    await page.wait_for_function("!document.querySelector('.pt-dashboard').offsetParent")
    await expect(page.locator(".pt-settings")).to_be_visible()
    await page.wait_for_function("Pageturn.socket.request({ type: 'ping' }).then(() => true)")
    frames.clear()
    for _ in range(4):
        await page.wait_for_function("Pageturn.socket.request({ type: 'ping' }).then(() => true)")
        await page.wait_for_timeout(300)
    texts = [frame for frame in frames if isinstance(frame, str)]
    assert len(texts) == len(frames), "a frame of the block map came"
    assert not [text for text in texts if '"type":"stats"' in text or '"type":"requests"' in text]
    await page.get_by_role("tab", name="Chat").click()
    await stop(page)


async def test_a_phone_shows_all_of_it_and_nothing_wider_than_itself(
    phone: Page, fake_server: AppProcess
) -> None:
    await start_long_answer(phone, fake_server)
    await phone.get_by_role("tab", name="Dashboard").tap()
    row = phone.locator("tr[data-request]").first
    await expect(row).to_be_visible()
    stop_here = row.get_by_role("button", name=re.compile("Stop"))
    box = await stop_here.bounding_box()
    assert box is not None
    assert (box["width"] >= 40, box["height"] >= 40) == (True, True)
    assert box["x"] + box["width"] <= 390
    wide = await phone.evaluate(
        """[...document.querySelectorAll(".pt-dashboard > *, .pt-dashboard .pt-panel > *")]
          .filter((part) => part.getBoundingClientRect().right > 391).map((part) => part.className)"""
    )
    assert wide == []
    assert await phone.evaluate("document.documentElement.scrollWidth") == 390
    await stop_here.tap()
    await expect(phone.locator(".pt-dashboard tbody tr").first).to_have_text("No live requests")


async def test_panels_keep_their_size_beside_the_rest_of_the_page(
    page: Page, fake_server: AppProcess
) -> None:
    """Styles of other parts of the page do not reach in."""
    await open_page(page, fake_server)
    await open_dashboard(page)
    await expect(page.locator("[data-facts=machine] > div")).to_have_count(9)
    sizes = await page.evaluate(
        """Object.fromEntries([...document.querySelectorAll(".pt-dashboard .pt-panel")]
          .map((panel) => [panel.getAttribute("aria-label"), [panel.clientWidth, panel.clientHeight]]))"""
    )
    assert len(sizes) == 5
    for name, (width, height) in sizes.items():
        assert width > 380, name
        assert height < 700, (name, height)


async def test_nothing_is_held_while_nothing_runs_and_the_panel_says_so(
    page: Page, fake_server: AppProcess
) -> None:
    await start_long_answer(page, fake_server)
    await open_dashboard(page)
    fits = page.locator(".pt-fit")
    await expect(fits).to_have_text([re.compile(r"^\d[\d,]* would fit$")] * 4)
    await page.get_by_role("tab", name="Chat").click()
    await stop(page)
    await open_dashboard(page)
    await expect(page.locator(".pt-fit-basis")).to_contain_text("nothing is held now")
    await expect(page.locator(".pt-bars")).to_be_hidden()


ENDED = {
    "request_id": 1, "kind": "answer", "state": "finished", "waiting_reason": None, "num_candidates": 4, "prompt_tokens": 3,
    "computed_tokens": 3, "generated_tokens": 9, "cached_tokens": 0, "blocks_private": 0, "blocks_shared": 0,
    "tokens_per_second": 1.0, "age_s": 2.0, "owner_number": 1, "conversation_id": "c", "generation_id": "g",
    "title": "Rivers", "finish_reasons": ["stop", "length", "abort", "error"],
}  # fmt: skip


async def test_states_and_ends_are_said_in_words_and_a_comparison_as_what_it_is(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    asked = ENDED | {"request_id": 2, "generation_id": None, "finish_reasons": ["length"]}
    waits = [
        ENDED | {"request_id": number, "state": state, "waiting_reason": reason, "title": reason}
        for number, state, reason in (
            (3, "waiting", "capacity"), (4, "waiting", "budget"), (5, "running", "deferred"),
        )
    ]  # fmt: skip
    program = ENDED | {
        "request_id": 6, "conversation_id": None, "generation_id": None, "title": None, "finish_reasons": ["stop"],
    }  # fmt: skip
    embedding = program | {
        "request_id": 7,
        "kind": "embedding",
        "num_candidates": 1,
        "generated_tokens": 0,
    }
    said = await page.evaluate(
        """([items, recent]) => {
          const panel = document.querySelector("[aria-label=Requests]") ?? document.createElement("section");
          panel.innerHTML = '<p class="pt-request-count"></p><div class="pt-table"><table><thead><tr></tr></thead><tbody></tbody></table></div>';
          const table = new Pageturn.RequestsTable(panel, { element: document.createElement("div"), open() {} }, new Pageturn.Owners());
          table.update({ items, recent });
          return [...panel.querySelectorAll("tr[data-request]")].map((row) => [row.querySelector(".pt-row-name").textContent, row.children[1].textContent, [2, 4].map((at) => row.children[at].textContent).join(), row.querySelector(".pt-row-name").title]);
        }""",
        [waits, [ENDED, asked, program, embedding]],
    )
    assert [[name, state] for name, state, _, _ in said] == [
        ["capacity", "waiting for memory"],
        ["budget", "waiting for its turn"],
        ["deferred", "running (some wait for a sibling)"],
        ["Rivers", "complete, length limit, stopped, failed"],
        ["Compare: Rivers", "one token asked for"],
        ["Program's request 6", "complete"],
        ["Embedding 7", "complete"],
    ]
    assert [numbers for _, _, numbers, _ in said[-2:]] == ["4,9", "–,–"]
    assert said[4][3] == "Compare asked the model for one token, to show what it thought at a mark"


async def test_a_stopped_request_is_told_so_in_its_life(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    end = {"time_s": 1.0, "kind": "end", "index": 1, "num_tokens": 5, "num_blocks": 0}
    words = []
    for reason in ("stop", "length", "abort", "error"):
        told = ENDED | {"queue_ms": 1.0, "ttft_ms": 1.0, "events": [end | {"reason": reason}]}
        words.append(
            await page.evaluate(
                """(told) => {
                  const timeline = new Pageturn.Timeline(document.createElement("div"));
                  timeline.draw(told);
                  return timeline.element.querySelector("li span").textContent;
                }""",
                told,
            )
        )
    ends = ("complete", "length limit", "stopped", "failed")
    assert words == [f"answer B ended ({end}), 5 tokens" for end in ends]


async def test_a_gpu_tells_its_load(page: Page, fake_server: AppProcess) -> None:
    await open_page(page, fake_server)
    await open_dashboard(page)
    told = await page.evaluate(
        """async () => {
          const stats = await (await fetch("api/stats")).json();
          const say = (utilisation) => {
            const list = document.createElement("dl");
            const gpu = { name: "A card", utilisation, memory_used_bytes: 2e9, memory_total_bytes: 8e9 };
            Pageturn.machineFacts(list, { ...stats, machine: { ...stats.machine, gpu } });
            return [...list.querySelectorAll("div")].find((fact) => fact.innerText.startsWith("GPU")).lastChild.textContent;
          };
          return [stats.machine.gpu, say(0.425), say(null)];
        }"""
    )
    assert told[0] is None
    assert told[1] == "A card: 43 % busy, 1.9 GiB of 7.5 GiB memory in use"
    assert told[2] == "A card: load unknown, 1.9 GiB of 7.5 GiB memory in use"


async def test_a_machine_that_is_its_own_kernels_device_is_said_once(
    page: Page, fake_server: AppProcess
) -> None:
    await open_page(page, fake_server)
    said = [
        await page.evaluate(
            f"Pageturn.kernels({{attention_backend: '{kernels}', device: '{device}'}})"
        )
        for kernels, device in (("cpu", "cpu"), ("reference", "cpu"), ("triton", "cuda:0"))
    ]
    assert said == ["cpu kernels", "reference kernels on cpu", "triton kernels on cuda:0"]
