"""What a socket listens to: the page's rendered variant, conversations in several windows, and slow readers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from api import subscriptions
from engine.outputs import EngineEvent, PrefillProgress
from engine.sampling_params import SamplingParams
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream
from ui.render import StreamRenderer

MARKDOWN = ["# Title\n", "\nSome *text* ", "goes on.\n\n", "- a\n", "- b\n\n", "`end`"]
WHOLE = "".join(MARKDOWN)


def markdown_engine(token_interval: float = 0.0) -> FakeEngine:
    return FakeEngine(lambda prompt, index: MARKDOWN, token_interval=token_interval)


class Page:
    """Applies frames as the page does, per candidate: what it shows after each."""

    def __init__(self) -> None:
        self.html: dict[int, str] = {}
        self.tail: dict[int, str] = {}
        self.final: set[int] = set()

    def apply(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "snapshot":
            renders = enumerate(frame["renders"])
            self.html, self.tail = {}, {}
            for index, render in renders:
                self.html[index], self.tail[index] = render["html"], render["tail"]
        if frame["type"] == "render":
            index = frame["index"]
            final = frame.get("final", False)
            assert index not in self.final, "nothing comes after the final render"
            self.html[index] = ("" if final else self.html.get(index, "")) + frame["html"]
            self.tail[index] = frame["tail"]
            self.final |= {index} if final else set()

    def shown(self, index: int = 0) -> str:
        return self.html[index] + self.tail[index]


class InChunks(FakeStream):
    """Its prompt is computed in two steps, and everybody hears of the first before the second begins."""

    async def _run(self) -> AsyncIterator[EngineEvent]:
        yield PrefillProgress(1, 2)
        await asyncio.sleep(0.05)
        async for event in super()._run():
            yield event


class ChunkedEngine(FakeEngine):
    """All its prompts are."""

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> InChunks:
        return InChunks(self, list(prompt_token_ids), params)


async def test_the_first_text_does_not_wait_for_a_turn_that_progress_took(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "RENDER_INTERVAL_S", 60.0)
    running = await start(ChunkedEngine(lambda prompt, index: MARKDOWN, token_interval=0.01))
    async with running.ready_socket("?format=html") as client:
        await client.send("send", content="hello")
        frames = await client.until("finished")
    kinds = [(frame["type"], frame.get("final", False)) for frame in frames]
    assert kinds.index(("render", False)) < kinds.index(("render", True))


async def test_a_page_sees_renders_in_place_of_deltas(start: Start) -> None:
    running = await start(markdown_engine(0.03))
    page = Page()
    async with running.ready_socket("?format=html") as client:
        await client.send("send", content="hello", n=2)
        await client.expect("started")
        frames = await client.until("finished")
    for frame in frames:
        page.apply(frame)
    kinds = [frame["type"] for frame in frames]
    assert "delta" not in kinds
    for index in (0, 1):
        assert page.shown(index) == StreamRenderer().render(WHOLE)
        mine = [f for f in frames if f.get("index") == index]
        assert [f["type"] for f in mine[-2:]] == ["render", "candidate"]
        assert [f.get("final", False) for f in mine[:-1]] == [False] * (len(mine) - 2) + [True]
        assert mine[-2]["tail"] == ""
    seqs = [frame["seq"] for frame in frames]
    assert seqs == sorted(seqs)


async def test_two_windows_on_one_conversation_show_the_same(start: Start) -> None:
    running = await start(markdown_engine(0.03))
    pages = Page(), Page()
    async with (
        running.ready_socket("?format=html") as first,
        running.ready_socket("?format=html") as second,
    ):
        await first.send("send", content="hello")
        started = await first.expect("started")
        await first.skip_to("render")
        await second.send("subscribe", topic="conversation", id=started["conversation_id"])
        view = await second.expect("conversation")
        assert [m["role"] for m in view["messages"]] == ["user", "assistant"]
        assert view["messages"][0]["html"] == StreamRenderer().render("hello")
        assert view["generation_id"] == started["generation_id"]
        snapshot = await second.expect("snapshot")
        assert len(snapshot["renders"]) == len(snapshot["texts"]) == 1
        pages[1].apply(snapshot)
        for client, page in ((first, pages[0]), (second, pages[1])):
            for frame in await client.until("finished"):
                page.apply(frame)
    assert pages[1].shown() == StreamRenderer().render(WHOLE)
    assert pages[0].html == pages[1].html


async def test_a_page_that_comes_back_gets_the_whole_text_again(start: Start) -> None:
    running = await start(markdown_engine(0.03))
    page = Page()
    page.html[0] = "what it showed before"
    async with running.ready_socket("?format=html") as client:
        await client.send("send", content="hello")
        generation = (await client.expect("started"))["generation_id"]
        seq = (await client.skip_to("render"))["seq"]
    async with running.ready_socket("?format=html") as client:
        await client.send("attach", generation_id=generation, from_seq=seq + 1)
        snapshot = await client.expect("snapshot")
        assert (snapshot["seq"], snapshot["renders"]) == (-1, [])
        page.apply(snapshot)
        for frame in await client.until("finished"):
            page.apply(frame)
    assert page.shown() == StreamRenderer().render(WHOLE)


async def test_pages_show_a_continued_answer_from_its_beginning(start: Start) -> None:
    """The window that asked, one that watched all the time, and one that comes in the middle."""
    running = await start(markdown_engine(0.03))
    pages = [Page() for _ in range(3)]
    kept = WHOLE[:19]
    async with (
        running.ready_socket("?format=html") as asking,
        running.ready_socket("?format=html") as watching,
        running.ready_socket("?format=html") as late,
    ):
        await asking.send("send", content="hello")
        first = await asking.expect("started")
        await asking.until("finished")
        await watching.send("subscribe", topic="conversation", id=first["conversation_id"])
        await watching.expect("conversation")
        answer = first["candidates"][0]["message_id"]
        await asking.send("continue", message_id=answer, at_token=len(kept), n=2)
        generation = (await asking.expect("started"))["generation_id"]
        view = await watching.expect("conversation")
        assert {m["content"] for m in view["candidates"]} == {kept}
        beginning = await watching.expect("snapshot")
        pages[1].apply(beginning)
        assert pages[1].shown().startswith("<h3>Title</h3>\n<p>Some *text")
        pages[1].apply(await watching.skip_to("render"))
        await late.send("attach", generation_id=generation)
        for page, client in zip(pages, (asking, watching, late), strict=True):
            for frame in await client.until("finished"):
                page.apply(frame)
    for page in pages:
        assert [page.shown(index) for index in (0, 1)] == [
            StreamRenderer().render(kept + WHOLE)
        ] * 2


async def test_each_event_passes_once_although_two_subscriptions_bring_it(start: Start) -> None:
    running = await start(FakeEngine(token_interval=0.005))
    async with running.ready_socket() as client:
        await client.send("send", content="one")
        started = await client.expect("started")
        await client.until("finished")
        await client.send("subscribe", topic="conversation", id=started["conversation_id"])
        await client.skip_to("conversation")
        await client.send("send", content="two", conversation_id=started["conversation_id"])
        second = await client.skip_to("started")
        events = [f for f in await client.until("finished") if "seq" in f]
        await client.skip_to("conversation")
    assert {event["generation_id"] for event in events} == {second["generation_id"]}
    assert [event["seq"] for event in events] == list(range(len(events)))


async def test_watching_twice_starts_again_and_unsubscribing_ends(running: Running) -> None:
    async with running.ready_socket() as client, running.ready_socket() as other:
        for _ in range(2):
            await client.send("subscribe", topic="conversations")
            await client.expect("conversations")
        await other.send("send", content="hello")
        await other.until("finished")
        changed = await client.expect("conversation_changed")
        assert changed["item"].keys() == {
            "id",
            "title",
            "pinned",
            "created_at",
            "updated_at",
            "running",
        }
        await client.send("unsubscribe", topic="conversations", request_id=4)
        frame = await client.skip_to("unsubscribed")
        assert frame == {"type": "unsubscribed", "request_id": 4, "topic": "conversations"}
        await client.send("unsubscribe", topic="conversation", id="x")
        assert (await client.expect("unsubscribed"))["id"] == "x"
        await other.send("send", content="hello again")
        await other.until("finished")
        await client.send("ping")
        await client.expect("pong")


async def test_a_window_hears_that_its_conversation_was_deleted(running: Running) -> None:
    async with running.ready_socket() as client, running.http() as http:
        await client.send("send", content="hello")
        started = await client.expect("started")
        await client.until("finished")
        await client.send("subscribe", topic="conversation", id=started["conversation_id"])
        await client.expect("conversation")
        await http.delete(f"/api/conversations/{started['conversation_id']}")
        removed = await client.skip_to("conversation_removed")
    assert removed["conversation_id"] == started["conversation_id"]


async def test_a_reader_that_does_not_read_gets_a_snapshot_not_an_endless_queue(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chat.generation.BUFFER_EVENTS", 50)
    # A token of the scripted engine is a byte: here they would be millions, and nobody asks for them.
    monkeypatch.setattr("chat.generation.Generation.add_tokens", lambda *_: None)
    pieces = ["x" * 50_000] * 300
    running = await start(FakeEngine(lambda prompt, index: pieces))
    async with (
        running.ready_socket(max_size=None) as watcher,
        running.ready_socket(max_queue=1, max_size=None) as slow,
    ):
        await slow.send("send", content="hello")
        started = await slow.expect("started")
        await watcher.send("attach", generation_id=started["generation_id"])
        await watcher.until("finished")
        events = await slow.until("finished")
    snapshot = next(event for event in events if event["type"] == "snapshot")
    assert len(snapshot["texts"][0]) == 300 * 50_000
    after = [event["seq"] for event in events[events.index(snapshot) :]]
    assert after == list(range(after[0], after[-1] + 1))
    assert len(events) < 300
    assert snapshot["candidates"] or events[-2]["type"] == "candidate"
