"""The streams of `tests.fake_engine.FakeEngine`: scripted text, embeddings made from the prompt."""

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from engine.outputs import (
    CandidateFinished,
    Embedding,
    EngineEvent,
    FinishReason,
    KVUsage,
    PrefillProgress,
    PromptLogprobs,
    RequestFinished,
    TextDelta,
    TextLogprob,
    Timings,
    Usage,
)
from engine.sampling_params import SamplingParams
from engine.stats import FinishedCandidate

if TYPE_CHECKING:
    from tests.fake_engine import FakeEngine

HIDDEN_SIZE = 8


class FakeStream:
    """The stream of one request; the real one is `engine.async_engine.RequestStream`.

    Iterating yields `EngineEvent`s up to and including the terminal `RequestFinished`. `abort` may be called at any
    time, before the first iteration and after the end too, and never raises; the stream then still ends with its
    `CandidateFinished` (reason abort) and `RequestFinished`. Leaving `async with`, or `aclose()`, aborts what still runs.
    Deltas that nobody has read yet are merged, so an unread stream stays small.
    """

    def __init__(self, engine: "FakeEngine", prompt: Sequence[int], params: SamplingParams) -> None:
        self.request_id = next(engine.ids)
        self.engine, self.prompt, self.params = engine, prompt, params
        self.aborted: set[int] = set()
        self.finish_reasons: list[str] = []
        self._hurry = asyncio.Event()
        self._events = self._run()

    def __aiter__(self) -> AsyncIterator[EngineEvent]:
        return self._events

    async def __aenter__(self) -> "FakeStream":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def abort(self, index: int | None = None) -> None:
        """End one candidate, or all."""
        self.aborted |= {index} if index is not None else set(range(self.params.n))
        self._hurry.set()

    async def aclose(self) -> None:
        """Abort what still runs and return when the engine has let go of it."""
        self.abort()
        self.engine.live.pop(self.request_id, None)

    async def _run(self) -> AsyncIterator[EngineEvent]:
        started = time.monotonic()
        self.engine.live[self.request_id] = self
        texts = [self.engine.script(self.prompt, index) for index in range(self.params.n)]
        limit = self.params.max_tokens or 1024
        live = set(range(self.params.n))
        yield PrefillProgress(len(self.prompt), len(self.prompt))
        if self.params.prompt_logprobs is not None:
            yield fake_prompt_logprobs(self.prompt, self.params.prompt_logprobs)
        try:
            for position in itertools.count():
                for index in sorted(live):
                    reason = self._finish_reason(index, position, len(texts[index]), limit)
                    if reason is not None:
                        live.discard(index)
                        self.finish_reasons.append(reason.value)
                        said = "<assistant>" + "".join(texts[index][:position])
                        self.engine.computed.append([*self.prompt, *said.encode()])
                        yield self._finished(index, min(position, limit), reason, started)
                    else:
                        self.engine.generated_tokens += 1
                        piece = texts[index][position]
                        yield TextDelta(index, piece, tuple(piece.encode()), self._logprobs(piece))
                if not live:
                    break
                await self._pause()
        finally:
            self.engine.live.pop(self.request_id, None)
        yield RequestFinished()

    async def _pause(self) -> None:
        """An interval, which an abort ends: the real engine lets go within a step."""
        pace = self.engine.token_interval
        interval = pace(self.prompt) if callable(pace) else pace
        if not interval:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), interval)
        self._hurry.clear()

    def _logprobs(self, piece: str) -> tuple[TextLogprob, ...]:
        """Of one token, when asked for: the letters from a on, each half as likely as the one before it.

        The drawn one is what `logit_bias` forces, else the beginning of `piece`; outside of the best it has 1/1024.
        """
        count = self.params.logprobs
        if count is None:
            return ()
        ids = range(ord("a"), ord("a") + count)
        best = [
            TextLogprob(i, chr(i), -(place + 1) * math.log(2), bytes([i]))
            for place, i in enumerate(ids)
        ]
        drawn = next(iter(self.params.logit_bias), piece.encode()[0])
        logprob = best[drawn - ids[0]].logprob if drawn in ids else -10 * math.log(2)
        return (TextLogprob(drawn, chr(drawn), logprob, bytes([drawn]), tuple(best)),)

    def _finish_reason(
        self, index: int, position: int, length: int, limit: int
    ) -> FinishReason | None:
        if index in self.aborted:
            return FinishReason.ABORT
        if position >= length:
            return FinishReason.STOP
        return FinishReason.LENGTH if position >= limit else None

    def _finished(
        self, index: int, tokens: int, reason: FinishReason, started: float
    ) -> CandidateFinished:
        ms = (time.monotonic() - started) * 1e3
        usage = Usage(len(self.prompt), tokens, 0)
        timings = Timings(0.0, 1.0, 2.0, ms, tokens / max(ms, 1e-3) * 1e3, 1.0)
        for listener in self.engine.listeners:
            listener(FinishedCandidate(self.request_id, index, reason, usage, timings, ms))
        return CandidateFinished(index, reason, None, usage, timings, KVUsage(2, 4, 2, 0.01))


def fake_logprob(token: bytes, num_top: int) -> TextLogprob:
    """A token that was certain, as far as float32 can tell, and others that were not: a, b, c ..."""
    others = [TextLogprob(97 + i, chr(97 + i), -20.0 - i, bytes([97 + i])) for i in range(num_top)]
    return TextLogprob(token[0], token.decode(errors="replace"), 0.0, token, tuple(others))


def fake_prompt_logprobs(prompt: Sequence[int], num_top: int) -> PromptLogprobs:
    """Every byte of the prompt was certain."""
    first, *others = (bytes([token_id % 256]) for token_id in prompt)
    shown = tuple(fake_logprob(token, num_top) for token in others)
    return PromptLogprobs(first.decode(errors="replace"), shown)


class FakeEmbeddingStream(FakeStream):
    """The stream of an embedding request: HIDDEN_SIZE numbers made from the prompt, after one interval."""

    def __init__(self, engine: "FakeEngine", prompt: Sequence[int]) -> None:
        super().__init__(engine, prompt, SamplingParams(max_tokens=0))

    async def _run(self) -> AsyncIterator[EngineEvent]:
        started = time.monotonic()
        self.engine.live[self.request_id] = self
        yield PrefillProgress(len(self.prompt), len(self.prompt))
        try:
            await self._pause()
            reason = FinishReason.ABORT if self.aborted else FinishReason.STOP
            if not self.aborted:
                yield Embedding(fake_embedding(self.prompt))
            yield self._finished(0, 0, reason, started)
        finally:
            self.engine.live.pop(self.request_id, None)
        yield RequestFinished()


def fake_embedding(prompt: Sequence[int]) -> tuple[float, ...]:
    """How often the prompt has tokens of each rest when divided by HIDDEN_SIZE, at length 1."""
    counts = [
        sum(token_id % HIDDEN_SIZE == rest for token_id in prompt) for rest in range(HIDDEN_SIZE)
    ]
    return tuple(count / math.hypot(*counts) for count in counts)
