"""One generation's way to one client: each event once and in order, whichever subscription brought it.

A client may hear of a generation twice, because it is attached to it and because it watches its conversation. A lane
drops what has passed already. In the page's variant a lane sends `render` in place of `delta`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from api.frames import EVENT_TYPES, frame_text
from api.rendering import CandidateText, Rendering
from chat.events import Candidate, Delta, Finished, GenerationEvent, Progress, Snapshot
from chat.wire import to_wire

Put = Callable[[str], Awaitable[None]]


class Lane:
    """Sends a generation's events as text frames.

    `attached` lanes take events from `attach` alone, so none of them can have passed before.
    """

    def __init__(self, generation_id: str, put: Put, from_seq: int, *, attached: bool) -> None:
        self.generation_id = generation_id
        self.attached = attached
        self.last_seq = from_seq - 1
        self._put = put

    async def pass_on(self, event: GenerationEvent) -> None:
        """Send the event unless it has passed."""
        if self.attached or event.seq > self.last_seq:
            self.last_seq = event.seq
            await self._send(event)

    async def flush(self) -> None:
        """Send what is held back for rate's sake: nothing here."""

    async def _send(self, event: GenerationEvent) -> None:
        await self._put(frame_text(EVENT_TYPES[type(event)], to_wire(event)))


class RenderLane(Lane):
    """A lane for pages: deltas are gathered until `flush`, which its connection calls 12 times a second at most."""

    def __init__(
        self, generation_id: str, put: Put, from_seq: int, *, attached: bool, rendering: Rendering
    ) -> None:
        super().__init__(generation_id, put, from_seq, attached=attached)
        self._rendering = rendering
        self._shared = rendering.generation(generation_id)
        self._shown: dict[int, int] = {}
        self._stale: set[int] = set()

    async def flush(self) -> None:
        stale, self._stale = sorted(self._stale), set()
        for index in stale:
            candidate = self._shared.candidate(index)
            candidate.refresh()
            html = candidate.frozen[self._shown.get(index, 0) :]
            self._shown[index] = len(candidate.frozen)
            await self._render(index, html, candidate.tail)

    async def reset(self) -> None:
        """Tell a returning page to forget what it shows: the whole text follows."""
        await self._put(
            frame_text(
                "snapshot", to_wire(Snapshot(self.generation_id, -1, (), ())) | {"renders": []}
            )
        )

    async def _send(self, event: GenerationEvent) -> None:
        match event:
            case Delta(seq=seq, index=index, text=text):
                self._shared.add(seq, index, text)
                self._stale.add(index)
            case Snapshot():
                await self._send_snapshot(event)
            case Candidate(index=index):
                await self._send_final(index)
                await super()._send(event)
            case Progress() | Finished():
                await super()._send(event)

    async def _send_snapshot(self, event: Snapshot) -> None:
        self._shared.skip_to(event.seq, event.texts)
        candidates = [self._shared.candidate(index) for index in range(len(event.texts))]
        self._stale.clear()
        renders: list[dict[str, str]] = []
        for index, candidate in enumerate(candidates):
            renders.append(self._show(index, candidate))
            await asyncio.sleep(0)  # each may be long, and others have events too
        await self._put(frame_text("snapshot", to_wire(event) | {"renders": renders}))

    def _show(self, index: int, candidate: CandidateText) -> dict[str, str]:
        candidate.refresh()
        self._shown[index] = len(candidate.frozen)
        return {"html": candidate.frozen, "tail": candidate.tail}

    async def _send_final(self, index: int) -> None:
        self._stale.discard(index)
        text = self._shared.candidate(index).text
        html = await asyncio.to_thread(self._rendering.render, text)
        await self._render(index, html, "", final=True, text=text)

    async def _render(self, index: int, html: str, tail: str, **final: Any) -> None:
        fields: dict[str, Any] = {"generation_id": self.generation_id, "seq": self.last_seq}
        fields |= {"index": index, "html": html, "tail": tail, **final}
        await self._put(frame_text("render", fields))
