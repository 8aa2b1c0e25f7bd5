"""Time and an engine that a test moves by hand."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Sequence

from engine.outputs import (
    CandidateFinished,
    EngineEvent,
    Failure,
    FinishReason,
    KVUsage,
    PrefillProgress,
    RequestFinished,
    TextDelta,
    Timings,
    Usage,
)
from engine.sampling_params import SamplingParams
from tests.fake_engine import FakeEngine

_request_ids = itertools.count(1)


class FakeTimer:
    """A call at `due`, unless cancelled."""

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.is_cancelled = due, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeClock:
    """Time that passes only in `advance`."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    @property
    def num_pending(self) -> int:
        return sum(not timer.is_cancelled for _, _, timer in self._timers)

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.now + delay, callback)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        self.now += seconds
        while self._timers and self._timers[0][0] <= self.now:
            _, _, timer = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                timer.callback()


class ManualStream:
    """Yields what the test pushes; an abort ends candidates as the engine would."""

    def __init__(self, n: int, request_id: int = 1) -> None:
        self.request_id = request_id
        self._events: asyncio.Queue[EngineEvent | Exception] = asyncio.Queue()
        self._live = set(range(n))
        self.request_id = next(_request_ids)
        self.is_closed = False
        self.is_deaf = False

    def progress(self) -> None:
        self._events.put_nowait(PrefillProgress(3, 3))

    def text(self, text: str, index: int = 0, *, drawn: str | bytes | None = None) -> None:
        """`text` is shown; `drawn`, if it is another text, are the bytes whose tokens were drawn for it."""
        spelled = text if drawn is None else drawn
        ids = tuple(spelled.encode() if isinstance(spelled, str) else spelled)
        self._events.put_nowait(TextDelta(index, text, ids))

    def end(
        self, index: int = 0, reason: FinishReason = FinishReason.STOP, error: str | None = None
    ) -> None:
        self._live.discard(index)
        self._events.put_nowait(
            CandidateFinished(
                index,
                reason,
                None,
                Usage(3, 2, 1),
                Timings(0.0, 1.0, 2.0, 3.0, 4.0, 1.0),
                KVUsage(1, 2, 3, 0.5),
                None if error is None else Failure(error),
            )
        )
        if not self._live:
            self._events.put_nowait(RequestFinished())

    def fail(self, error: Exception) -> None:
        self._events.put_nowait(error)

    def abort(self, index: int | None = None) -> None:
        if self.is_deaf:
            return
        for each in sorted(self._live & ({index} if index is not None else self._live)):
            self.end(each, FinishReason.ABORT)

    async def aclose(self) -> None:
        self.is_closed = True

    async def __aiter__(self) -> AsyncIterator[EngineEvent]:
        while True:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            yield event
            if isinstance(event, RequestFinished):
                return


class ManualEngine(FakeEngine):
    """A FakeEngine whose streams are moved by the test; keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[ManualStream] = []
        self.prompts: list[str] = []
        self.params: list[SamplingParams] = []
        self.submit_error: Exception | None = None
        self.submitted = asyncio.Event()

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> ManualStream:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.submit_error is not None:
            raise self.submit_error
        self.prompts.append(bytes(prompt_token_ids).decode())
        self.params.append(params)
        self.streams.append(ManualStream(params.n, len(self.streams) + 1))
        self.submitted.set()
        return self.streams[-1]
