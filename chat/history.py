"""The engine's past: what its samples say of a stretch of time, as points that a chart can draw.

A point's rates, shares and quantiles are differences of totals, so they cover all of its time however thin the samples lie.
Where two samples are further apart than samples ever are while the app runs, or a new engine began, there is a gap.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from chat.packing import unpack_counts
from chat.ports import Clock
from engine.distributions import EDGES, Distribution
from storage.records import EngineSample, SampleBucket
from storage.samples import MONTH, SampleStore

MAX_POINTS = 720
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
IDLE_INTERVAL_S = 60
GAP_S, THINNED_GAP_S = 125, 7205
"""Samples are never further apart while an app runs: a minute's or an hour's last one each, and a moment."""


@dataclass(frozen=True, slots=True)
class Change:
    """What happened between two samples. Latencies in milliseconds; None where nothing was measured."""

    output_tokens_per_second: float
    prompt_tokens_per_second: float
    requests: int
    preemptions: int
    forks: int
    cow_copies: int
    hit_rate: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    itl_p50_ms: float | None
    itl_p95_ms: float | None
    queue_p50_ms: float | None
    queue_p95_ms: float | None


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """`time` is the end of the stretch, in seconds since the epoch; gauges are means over it, shares 0 to 1."""

    time: int
    after_gap: bool
    blocks_in_use: float
    utilisation: float
    token_utilisation: float
    num_running: float
    num_waiting: float
    change: Change


@dataclass(frozen=True, slots=True)
class History:
    """Points from `since` to `end` in stretches of `step` seconds, of a window that begins at `start`; empty stretches have none."""

    start: int
    since: int
    end: int
    step: int
    points: tuple[HistoryPoint, ...]


class HistoryReader:
    """Reads `engine_samples`."""

    def __init__(self, samples: SampleStore, clock: Clock) -> None:
        self._samples, self._clock = samples, clock

    async def last(self, seconds: int, since: int = 0) -> History:
        """The last so many seconds; of them what can have changed for who knows all points up to `since`."""
        end = int(self._clock.time()) + 1
        return await self._read(end - seconds, end, since)

    async def between(self, start: int, end: int) -> History:
        """From `start` up to `end`, in seconds since the epoch."""
        return await self._read(start, end, start)

    async def _read(self, start: int, end: int, since: int) -> History:
        step = next((s for s in STEPS if (end - start) <= s * MAX_POINTS), STEPS[-1])
        since = max(start, since - since % step)
        buckets = await self._samples.buckets(since, end, step)
        points = await asyncio.to_thread(_points, buckets, since, step, self._clock.time())
        return History(start, since, end, step, points)


def _points(
    buckets: Sequence[SampleBucket], since: int, step: int, now: float
) -> tuple[HistoryPoint, ...]:
    return tuple(
        _point(before, bucket, max(2 * step, _longest_distance(bucket.last, now)))
        for before, bucket in zip((None, *buckets), buckets, strict=False)
        if bucket.last.time >= since
    )


def change(before: EngineSample | None, after: EngineSample) -> Change:
    """From one sample to a later one; without an earlier one of the same engine, from its start."""
    known = before if before and before.engine_started == after.engine_started else None
    since = known.time if known else after.engine_started or after.time - 1
    seconds = max(1, after.time - since)

    def grown(name: str) -> int:
        return max(0, getattr(after, name) - (getattr(known, name) if known else 0))

    queries = grown("prefix_queries")
    return Change(
        output_tokens_per_second=grown("generated_tokens") / seconds,
        prompt_tokens_per_second=grown("prompt_tokens") / seconds,
        requests=grown("requests"),
        preemptions=grown("preemptions"),
        forks=grown("forks"),
        cow_copies=grown("cow_copies"),
        hit_rate=grown("prefix_hits") / queries if queries else None,
        **_quantiles(known, after),
    )


def _quantiles(before: EngineSample | None, after: EngineSample) -> dict[str, float | None]:
    quantiles: dict[str, float | None] = {}
    for name in ("ttft", "itl", "queue"):
        earlier = getattr(before, name) if before else b""
        between = _between(earlier, getattr(after, name))
        for percent in (50, 95):
            value = None if between is None else between.quantile(percent / 100)
            quantiles[f"{name}_p{percent}_ms"] = None if value is None else value * 1e3
    return quantiles


def _between(earlier: bytes | None, later: bytes | None) -> Distribution | None:
    """What came between; None where that is nothing, or one of the two is not kept."""
    if earlier is None or later is None or earlier == later:
        return None
    return _distribution(later).since(_distribution(earlier))


@lru_cache(maxsize=6)
def _distribution(packed: bytes) -> Distribution:
    """What ends one stretch begins the next, so that each is unpacked once."""
    return Distribution(EDGES, unpack_counts(packed, len(EDGES) + 1), math.nan)


def _longest_distance(sample: EngineSample, now: float) -> int:
    return GAP_S if sample.time > now - MONTH else THINNED_GAP_S


def _point(before: SampleBucket | None, bucket: SampleBucket, longest: int) -> HistoryPoint:
    last = bucket.last
    return HistoryPoint(
        time=last.time,
        after_gap=before is None or _is_gap(before.last, last, longest),
        blocks_in_use=bucket.blocks_in_use,
        utilisation=bucket.blocks_in_use / last.blocks_total,
        token_utilisation=bucket.tokens_stored / last.tokens_capacity,
        num_running=bucket.num_running,
        num_waiting=bucket.num_waiting,
        change=change(before.last if before else None, last),
    )


def _is_gap(before: EngineSample, after: EngineSample, longest: int) -> bool:
    is_other = before.engine_started != after.engine_started
    return is_other or after.time - before.time > longest


def last_minute(samples: Sequence[EngineSample]) -> Change | None:
    """What happened from the first to the last of some samples of one engine."""
    return change(samples[0], samples[-1]) if len(samples) > 1 else None
