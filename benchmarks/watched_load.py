"""What watching costs the engine, for bench_dashboard: a steady load, watched by nobody, one and five in turns.

The load is eight endless answers of different ages, fetched whole, so that nothing but the engine works for them. The
watchers are a process of their own, whose processor time is counted apart.
"""

import asyncio
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import httpx2 as httpx
import psutil

NUM_ANSWERS, MAX_TOKENS = 8, 800
COUNTS = (0, 1, 5)
SETTLING_S = 0.4


@dataclass(frozen=True, slots=True)
class Interval:
    """What was found in one stretch of time, or the medians of several."""

    tokens_per_s: float
    cpu_us_per_token: float
    loop_cpu_ms_per_s: float
    watchers_cpu_ms_per_s: float


class Watchers:
    """The process of the watchers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def become(self, count: int) -> None:
        """Return when so many watch."""
        assert self._process.stdin is not None, "its input is a pipe"
        assert self._process.stdout is not None, "its output is a pipe"
        self._process.stdin.write(f"{count}\n".encode())
        said = await self._process.stdout.readline()
        assert int(said) == count, f"{said!r} in place of {count}"

    def cpu_s(self) -> float:
        """Processor time so far."""
        return _cpu_s(psutil.Process(self._process.pid))


@asynccontextmanager
async def watchers_of(url: str) -> AsyncIterator[Watchers]:
    """Nobody watches yet."""
    command = (sys.executable, "-m", "benchmarks.watchers", url)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield Watchers(process)
    finally:
        assert process.stdin is not None, "its input is a pipe"
        process.stdin.close()
        await process.wait()


async def answer_for_ever(http: httpx.AsyncClient, number: int) -> None:
    """One answer after the other; the first are of different lengths, so that all lengths are there at any time."""
    max_tokens = MAX_TOKENS * (number + 1) // NUM_ANSWERS
    while True:
        body = {"prompt": f"Story {number}:", "max_tokens": max_tokens, "ignore_eos": True}
        (await http.post("/v1/completions", json=body)).raise_for_status()
        max_tokens = MAX_TOKENS


async def measure_interval(
    http: httpx.AsyncClient, server: psutil.Process, watchers: Watchers, seconds: float
) -> Interval:
    """What happens in so many seconds."""

    async def look() -> tuple[float, int, float, float, float]:
        stats = (await http.get("/api/stats")).json()
        now = asyncio.get_running_loop().time()
        loop = next(thread for thread in server.threads() if thread.id == server.pid)
        loop_cpu_s = loop.user_time + loop.system_time
        tokens = stats["counters"]["generated_tokens"]
        return now, tokens, _cpu_s(server), loop_cpu_s, watchers.cpu_s()

    before = await look()
    await asyncio.sleep(seconds)
    after = await look()
    elapsed, tokens, cpu_s, loop_s, watchers_s = (
        b - a for a, b in zip(before, after, strict=True)
    )
    per_token = cpu_s / tokens * 1e6
    return Interval(
        tokens / elapsed, per_token, loop_s / elapsed * 1e3, watchers_s / elapsed * 1e3
    )


async def measure(url: str, rounds: int, seconds: float) -> dict[int, Interval]:
    """Medians by number of watchers."""
    server = _listener(int(url.rsplit(":", 1)[1]))
    found: dict[int, list[Interval]] = {count: [] for count in COUNTS}
    async with (
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http,
        watchers_of(url) as watchers,
    ):
        work = [asyncio.create_task(answer_for_ever(http, i)) for i in range(NUM_ANSWERS)]
        await asyncio.sleep(3)
        for turn in range(rounds):
            for count in COUNTS if turn % 2 else COUNTS[::-1]:
                await watchers.become(count)
                await asyncio.sleep(SETTLING_S)
                found[count].append(await measure_interval(http, server, watchers, seconds))
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return {count: _medians(intervals) for count, intervals in found.items()}


def _listener(port: int) -> psutil.Process:
    """The process that listens there."""
    return next(
        psutil.Process(c.pid)
        for c in psutil.net_connections("tcp")
        if c.laddr and c.laddr.port == port and c.status == psutil.CONN_LISTEN and c.pid
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _medians(intervals: list[Interval]) -> Interval:
    rows = [asdict(interval) for interval in intervals]
    return Interval(**{key: round(statistics.median(r[key] for r in rows), 1) for key in rows[0]})
