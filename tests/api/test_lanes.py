"""A lane passes each event once and in order, and never shows an old text after the final one."""

import asyncio
import json
from typing import Any

from api.lanes import Lane, RenderLane
from api.rendering import Rendering
from chat.events import Candidate, Delta, Finished, GenerationEvent, Progress, Snapshot

G = "g1"
END = Candidate(G, 3, 0, "done", "stop", None, None, None)


class Upper:
    """A renderer that freezes whole sentences, in capitals."""

    def __init__(self) -> None:
        self.done = 0

    def update(self, text: str) -> tuple[str, str]:
        cut = text.rfind(".") + 1
        html, self.done = text[self.done : cut].upper(), cut
        return html, text[cut:].upper()

    def render(self, text: str) -> str:
        return text.upper()


class Sink(list[dict[str, Any]]):
    async def put(self, frame: str) -> None:
        self.append(json.loads(frame))


async def pass_all(lane: Lane, *events: GenerationEvent) -> None:
    for event in events:
        await lane.pass_on(event)


async def test_an_event_passes_once_whoever_brings_it() -> None:
    sink = Sink()
    lane = Lane(G, sink.put, 0, attached=False)
    events = (Progress(G, 0, 1, 1), Delta(G, 1, 0, "a"), Delta(G, 2, 0, "b"))
    await pass_all(lane, *events[:2], *events, END, Finished(G, 4), END)
    assert [frame["seq"] for frame in sink] == [0, 1, 2, 3, 4]


async def test_a_snapshot_stands_for_what_it_contains() -> None:
    sink = Sink()
    lane = Lane(G, sink.put, 0, attached=False)
    await pass_all(
        lane, Progress(G, 0, 1, 1), Snapshot(G, 2, ("ab",), ()), Delta(G, 2, 0, "b"), END
    )
    assert [(frame["type"], frame["seq"]) for frame in sink] == [
        ("progress", 0),
        ("snapshot", 2),
        ("candidate", 3),
    ]


async def test_others_go_on_between_the_texts_of_a_snapshot() -> None:
    told: list[str] = []

    class Noting(Upper):
        def update(self, text: str) -> tuple[str, str]:
            told.append(text)
            return super().update(text)

    async def other() -> None:
        told.append("other")

    sink = Sink()
    lane = RenderLane(G, sink.put, 0, attached=True, rendering=Rendering(Noting))
    task = asyncio.create_task(other())
    await lane.pass_on(Snapshot(G, 2, ("one.", "two."), ()))
    await task
    assert told == ["one.", "other", "two."]
    assert sink[0]["renders"] == [{"html": "ONE.", "tail": ""}, {"html": "TWO.", "tail": ""}]


async def test_a_new_lane_shows_a_snapshot_of_nothing_yet() -> None:
    sink = Sink()
    await pass_all(Lane(G, sink.put, -1, attached=False), Snapshot(G, -1, ("",), ()))
    assert sink[0]["seq"] == -1


async def test_renders_grow_by_frozen_parts_and_end_with_the_whole() -> None:
    sink = Sink()
    lane = RenderLane(G, sink.put, 0, attached=True, rendering=Rendering(Upper))
    await pass_all(lane, Delta(G, 0, 0, "one. tw"))
    await lane.flush()
    await lane.flush()
    await pass_all(lane, Delta(G, 1, 0, "o. thr"), Delta(G, 2, 0, "ee"))
    await lane.flush()
    await pass_all(lane, END)
    await lane.flush()
    shown = [(f["html"], f["tail"], f.get("final", False)) for f in sink if f["type"] == "render"]
    assert shown == [
        ("ONE.", " TW", False),
        (" TWO.", " THREE", False),
        ("ONE. TWO. THREE", "", True),
    ]
    assert [frame["seq"] for frame in sink] == [0, 2, 3, 3]
    assert sink[2]["text"] == "one. two. three"


async def test_what_was_held_back_is_not_shown_after_the_final_text() -> None:
    sink = Sink()
    lane = RenderLane(G, sink.put, 0, attached=True, rendering=Rendering(Upper))
    await pass_all(lane, Delta(G, 0, 0, "one"), END)
    await lane.flush()
    assert [frame["type"] for frame in sink] == ["render", "candidate"]
    assert sink[0]["final"] is True


async def test_windows_share_one_rendering_and_each_sees_all_of_it() -> None:
    rendering, sinks = Rendering(Upper), (Sink(), Sink())
    first, second = (
        RenderLane(G, sink.put, 0, attached=True, rendering=rendering) for sink in sinks
    )
    await pass_all(first, Delta(G, 0, 0, "one."), Delta(G, 1, 0, " two."))
    await first.flush()
    await pass_all(second, Delta(G, 0, 0, "one."))
    await second.flush()
    await pass_all(second, Delta(G, 1, 0, " two."), Delta(G, 2, 0, " x"))
    await second.flush()
    texts = ["".join(f["html"] for f in sink) + sink[-1]["tail"] for sink in sinks]
    assert texts == ["ONE. TWO.", "ONE. TWO. X"]


async def test_a_snapshot_shows_everything_anew() -> None:
    sink = Sink()
    lane = RenderLane(G, sink.put, 0, attached=False, rendering=Rendering(Upper))
    await pass_all(lane, Snapshot(G, 5, ("one. t", ""), ()), Delta(G, 6, 0, "wo."))
    await lane.flush()
    assert sink[0]["renders"] == [{"html": "ONE.", "tail": " T"}, {"html": "", "tail": ""}]
    assert (sink[1]["html"], sink[1]["tail"]) == (" TWO.", "")
