"""What watching costs the engine, for bench_dashboard: a steady load, watched by nobody, one and five in turns.

The load is eight endless answers of different ages, fetched whole, so that nothing but the engine works for them. The
watchers are a process of their own, whose processor time is counted apart. Times come from Linux' scheduler, in
nanoseconds, so that short intervals do, and neighbours in time can be compared.
"""

import asyncio
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

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
        return _cpu_s(self._process.pid)


@asynccontextmanager
async def watchers_of(url: str) -> AsyncIterator[Watchers]:
    """Nobody watches yet."""
    command = (sys.executable, "-m", "benchmarks.watchers", url, str(max(COUNTS)))
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
    http: httpx.AsyncClient, server: int, watchers: Watchers, seconds: float
) -> Interval:
    """What happens in so many seconds."""

    async def look() -> tuple[float, int, float, float, float]:
        stats = (await http.get("/api/stats")).json()
        now = asyncio.get_running_loop().time()
        tokens = stats["counters"]["generated_tokens"]
        return now, tokens, _cpu_s(server), _cpu_s(server, str(server)), watchers.cpu_s()

    before = await look()
    await asyncio.sleep(seconds)
    after = await look()
    elapsed, tokens, cpu_s, loop_s, watchers_s = (b - a for a, b in zip(before, after, strict=True))
    per_token = cpu_s / tokens * 1e6
    return Interval(tokens / elapsed, per_token, loop_s / elapsed * 1e3, watchers_s / elapsed * 1e3)


async def measure(url: str, rounds: int, seconds: float) -> list[dict[int, Interval]]:
    """A dict a round, by number of watchers."""
    server = _listener(int(url.rsplit(":", 1)[1]))
    found: list[dict[int, Interval]] = []
    async with (
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http,
        watchers_of(url) as watchers,
    ):
        work = [asyncio.create_task(answer_for_ever(http, i)) for i in range(NUM_ANSWERS)]
        await asyncio.sleep(3)
        for turn in range(rounds):
            found.append({})
            for count in COUNTS if turn % 2 else COUNTS[::-1]:
                await watchers.become(count)
                await asyncio.sleep(SETTLING_S)
                found[-1][count] = await measure_interval(http, server, watchers, seconds)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return found


def medians(rounds: list[dict[int, Interval]], count: int) -> Interval:
    """Over the rounds, of one number of watchers."""
    rows = [asdict(turn[count]) for turn in rounds]
    return Interval(**{key: round(statistics.median(r[key] for r in rows), 1) for key in rows[0]})


def cost(rounds: list[dict[int, Interval]], count: int) -> dict[str, float]:
    """What so many watchers take, as shares of what there is without: medians over what each round says.

    "event loop" is how much longer its thread works, in relation to all that the server's threads do.
    """
    pairs = [(turn[0], turn[count]) for turn in rounds]
    shares = {
        "tokens/s": [1 - b.tokens_per_s / a.tokens_per_s for a, b in pairs],
        "processor time": [b.cpu_us_per_token / a.cpu_us_per_token - 1 for a, b in pairs],
        "event loop": [
            (b.loop_cpu_ms_per_s - a.loop_cpu_ms_per_s)
            * 1e3
            / (a.tokens_per_s * a.cpu_us_per_token)
            for a, b in pairs
        ],
    }
    return {name: round(statistics.median(found), 4) for name, found in shares.items()}


def _listener(port: int) -> int:
    """The process that listens there."""
    return next(
        c.pid
        for c in psutil.net_connections("tcp")
        if c.laddr and c.laddr.port == port and c.status == psutil.CONN_LISTEN and c.pid
    )


def _cpu_s(process: int, threads: str = "*") -> float:
    """Processor time of a process so far, or of those of its threads that match."""
    files = Path(f"/proc/{process}/task").glob(f"{threads}/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9
