"""What do HTTP and the socket cost beside the engine? `python -m benchmarks.bench_http [--rounds 5] [--tokens 128]`

The app runs as a child process, a second engine in this one; the same texts are answered by turns by the engine alone, over
/v1/chat/completions as streams, and over /ws/chat (where turns are also stored), by 1, 16 and 32 users at once, without speculation. Ratios are of the same round; client and
server share the machine's cores, so the clients are as light as clients can be. Then the first tokens of a single user, many times by turns; and
/health is asked again and again while a prompt of 6,000 tokens is computed and 200 KB are tokenised. Medians; the last line is JSON.

To reach: 90 % of the engine's throughput, 95 % over HTTP at 32 streams, the first token at most 5 ms later, /health within 50 ms in 99 of 100.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import httpx2 as httpx
import numpy as np
import platformdirs
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.bench_cpu import prompt_of
from benchmarks.machine import describe
from benchmarks.scheduling import print_report
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.loader.fetch import SMOLLM2_135M, resolve_model
from engine.outputs import TextDelta
from engine.sampling_params import SamplingParams
from ui.screenshots import running_app

USERS = (1, 16, 32)
PROMPT_TOKENS, TOKENIZED_CHARACTERS = 6000, 200_000
FIRST_TOKENS = 30
SHARE, MOST_STREAMS_SHARE, LATER_MS, HEALTH_MS = 0.9, 0.95, 5.0, 50.0


def text_of(number: int, user: int) -> str:
    """A question of some 100 tokens; other numbers and users share nothing of it in a prefix cache."""
    return f"{1000 + number} {10 + user}: " + "What is there to say of boats and of the moon? " * 8


class Way(Protocol):
    """A way to have a question answered."""

    async def ask(self, user: int, text: str) -> float:
        """Read the whole answer; gives the seconds to its first token."""
        ...


class Direct:
    """The engine in this process."""

    def __init__(self, engine: AsyncEngine, num_tokens: int) -> None:
        self._engine = engine
        self._params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)

    async def ask(self, user: int, text: str) -> float:
        started, first = time.perf_counter(), None
        prompt = await self._engine.render_chat([{"role": "user", "content": text}])
        async for event in self._engine.submit(prompt, self._params):
            if isinstance(event, TextDelta) and first is None:
                first = time.perf_counter() - started
        assert first is not None, "an answer has tokens"
        return first


class Http:
    """Streams of /v1/chat/completions, over one connection for each user, kept while the server keeps it."""

    def __init__(self, url: str, num_tokens: int) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self._fields = {"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}
        self._kept: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def ask(self, user: int, text: str) -> float:
        """The first event is the role, the second the first token."""
        messages = [{"role": "user", "content": text}]
        body = json.dumps({"messages": messages, "stream": True, **self._fields}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        if user not in self._kept or self._kept[user][0].at_eof():
            self._kept[user] = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._kept[user]
        started, first, answer = time.perf_counter(), None, b""
        writer.write(head.encode() + body)
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            piece = await reader.read(1 << 16)
            assert piece, "the server closed the connection"
            answer += piece
            if first is None and answer.count(b"data: ") > 1:
                first = time.perf_counter() - started
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        assert first is not None, "an answer has tokens"
        return first


class Socket:
    """A connection to /ws/chat for each user; every question begins a conversation."""

    def __init__(self, connections: list[ClientConnection], num_tokens: int) -> None:
        self._connections = connections
        self._fields = {"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}

    async def ask(self, user: int, text: str) -> float:
        connection = self._connections[user]
        frame = {"type": "send", "content": text, "sampling": self._fields}
        started, first = time.perf_counter(), None
        await connection.send(json.dumps(frame))
        async for data in connection:
            kind = json.loads(data)["type"]
            if kind == "delta" and first is None:
                first = time.perf_counter() - started
            if kind in ("finished", "error"):
                break
        assert first is not None, "an answer has tokens"
        return first


async def rate(way: Way, number: int, users: int, num_tokens: int) -> float:
    """Tokens a second of so many users at once, prefill included."""
    started = time.perf_counter()
    await asyncio.gather(*(way.ask(user, text_of(number, user)) for user in range(users)))
    return users * num_tokens / (time.perf_counter() - started)


async def compare(ways: dict[str, Way], rounds: int, num_tokens: int) -> dict[str, Any]:
    """Of each way and number of users: tokens a second, and the share of the engine's own in the same round."""
    shares: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    numbers, order = itertools.count(), list(ways)
    for turn in range(rounds + 1):
        for users in USERS:
            order = order[1:] + order[:1]
            found = {
                name: await rate(ways[name], next(numbers), users, num_tokens) for name in order
            }
            if turn == 0:
                continue
            for name, tokens_per_s in found.items():
                key = f"{name}, {users}"
                rates.setdefault(key, []).append(tokens_per_s)
                shares.setdefault(key, []).append(tokens_per_s / found["engine"])
    return {"tokens_per_s": _medians(rates), "share": _medians(shares, 3)}


async def first_tokens(ways: dict[str, Way]) -> dict[str, float]:
    """Milliseconds that the first token of a single user comes later than the engine's, of medians of many by turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    numbers = itertools.count(5000)
    for _ in range(FIRST_TOKENS):
        for name, way in ways.items():
            times[name].append(await way.ask(0, text_of(next(numbers), 0)) * 1e3)
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {name: round(median - medians["engine"], 2) for name, median in medians.items()}


def _medians(values: dict[str, list[float]], digits: int = 1) -> dict[str, float]:
    return {name: round(statistics.median(found), digits) for name, found in values.items()}


async def health_while_busy(http: httpx.AsyncClient, rounds: int) -> dict[str, float]:
    """Percentiles of the milliseconds of GET /health beside a long prefill and a long tokenisation."""
    times: list[float] = []
    text = "word " * (TOKENIZED_CHARACTERS // 5)
    for number in range(rounds):
        body = {"prompt": prompt_of(number, 0, PROMPT_TOKENS), "max_tokens": 1}
        prefill = asyncio.create_task(http.post("/v1/completions", json=body))
        tokenize = asyncio.create_task(http.post("/tokenize", json={"prompt": text}))
        while not (prefill.done() and tokenize.done()):
            started = time.perf_counter()
            (await http.get("/health")).raise_for_status()
            times.append((time.perf_counter() - started) * 1e3)
        for response in (await prefill, await tokenize):
            response.raise_for_status()
    return {f"p{percent}": round(float(np.percentile(times, percent)), 2) for percent in (50, 99)}


async def run(options: argparse.Namespace, url: str) -> None:
    files = resolve_model(options.model, options.data_dir)
    print(f"{describe()}, {files.name}")
    config = EngineConfig(model_path=files.path, model_name=files.name, num_speculative_tokens=0)
    engine = AsyncEngine(config)
    engine.start()
    await engine.wait_ready()
    async with AsyncExitStack() as stack:
        address = url.replace("http", "ws") + "/ws/chat"
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=300, trust_env=False)
        )
        sockets = [
            await stack.enter_async_context(connect(address, compression=None, proxy=None))
            for _ in range(max(USERS))
        ]

        def ways(num_tokens: int) -> dict[str, Way]:
            return {
                "engine": Direct(engine, num_tokens),
                "http": Http(url, num_tokens),
                "socket": Socket(sockets, num_tokens),
            }

        results = await compare(ways(options.tokens), options.rounds, options.tokens)
        results["first_token_later_ms"] = await first_tokens(ways(2))
        results["health_ms"] = await health_while_busy(http, options.rounds)
    await engine.shutdown()
    report(results)


def report(results: dict[str, Any]) -> None:
    for name, figures in results.items():
        print(f"{name}: " + ", ".join(f"{key}: {value}" for key, value in figures.items()))
    shares = {key: share for key, share in results["share"].items() if key[:6] != "engine"}
    later = {key: ms for key, ms in results["first_token_later_ms"].items() if key != "engine"}
    print_report(
        "bench_http",
        results,
        [
            *((f"{key}: {SHARE:.0%}", share >= SHARE) for key, share in shares.items()),
            (f"http, 32: {MOST_STREAMS_SHARE:.0%}", shares["http, 32"] >= MOST_STREAMS_SHARE),
            *((f"{key}: {LATER_MS:g} ms later", ms <= LATER_MS) for key, ms in later.items()),
            (f"health: {HEALTH_MS:g} ms", results["health_ms"]["p99"] < HEALTH_MS),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=SMOLLM2_135M.name)
    parser.add_argument("--data-dir", type=Path, default=platformdirs.user_data_path("pageturn"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    os.environ |= {"PAGETURN_LOG_LEVEL": "warning", "PAGETURN_NUM_SPECULATIVE_TOKENS": "0"}
    with running_app() as url:
        asyncio.run(run(options, url))


if __name__ == "__main__":
    main()
