"""Do all books agree after a mixed load? `python -m benchmarks.mixed_load [--minutes 10] [--people 4] [--programs 4]`

Starts the app with the built-in model, a small pool (so that it fills up) and a database of its own. People chat over the
socket: questions, three answers at once, edits, stops in the middle. Programs call completions, chat and embeddings, whole and
streamed, with one to three answers, stop strings and prompts that are too long; some requests are stopped from the
dashboard's route. Then the load ends and `benchmarks.reconcile` compares every figure with every other source of it: counters,
Prometheus, the database, the request log, the samples. The last line is JSON; the exit code is 1 when books disagree.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import httpx2 as httpx
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.machine import describe
from benchmarks.reconcile import Books, balance, disagreements
from tests.e2e.app_process import AppProcess, running_app

NUM_BLOCKS = "96"
SUBJECTS = ("boats", "bread", "the moon", "a small garden", "trains at night", "old letters")
TOO_LONG = "word " * 9000
LONGEST_QUESTION = 25
"""Tokens, of one without a chat template around it."""
IDLE = dict.fromkeys(
    ("running", "waiting", "waiting_capacity", "waiting_budget", "waiting_deferred"), 0
)


class Load:
    """People and programs until `end`, and a count of what they did."""

    def __init__(self, app: AppProcess, end: float, seed: int) -> None:
        self.app, self.end = app, end
        self.draw = random.Random(seed)
        self.done: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        return asyncio.get_running_loop().time() >= self.end

    async def person(self) -> None:
        """Chats in one conversation after the other."""
        while not self.is_over:
            async with connect(self.app.socket_url, max_size=None) as socket:
                started = await self.ask(socket, {"type": "send", "content": self.question()})
                for _ in range(3):
                    if self.is_over:
                        return
                    conversation = {"conversation_id": started["conversation_id"]}
                    frame = {"type": "send", "content": self.question(), **conversation}
                    if self.draw.random() < 0.3:
                        message_id = started["candidates"][0]["message_id"]
                        frame = {"type": "regenerate", "message_id": message_id, "n": 3}
                    started = await self.ask(socket, frame)

    async def ask(self, socket: ClientConnection, frame: dict) -> dict:
        """Send a frame, and read its generation to the end; every fourth is stopped in the middle."""
        limit = self.draw.choice((20, 60, 150))
        frame |= {"sampling": {"max_tokens": limit, "temperature": 0.9}}
        stop_after = self.draw.randrange(40) if self.draw.random() < 0.25 else None
        await socket.send(json.dumps(frame))
        started: dict = {}
        num_deltas = 0
        async for text in socket:
            event = json.loads(text)
            num_deltas += event["type"] == "delta"
            if event["type"] == "started":
                started = event
            if event["type"] == "error":
                raise SystemExit(f"{frame['type']} was refused: {event}")
            if stop_after is not None and num_deltas > stop_after:
                stop_after = None
                await socket.send(
                    json.dumps({"type": "stop", "generation_id": started["generation_id"]})
                )
                self.done["stopped by a person"] += 1
            if event["type"] == "finished":
                break
        self.done[frame["type"]] += 1
        return started

    async def program(self) -> None:
        """Calls one route after the other."""
        calls = (self.complete, self.complete, self.stream_chat, self.embed, self.too_long)
        async with httpx.AsyncClient(base_url=self.app.url, timeout=300, trust_env=False) as http:
            while not self.is_over:
                call = self.draw.choice(calls)
                await call(http)
                self.done[call.__name__] += 1

    async def complete(self, http: httpx.AsyncClient) -> None:
        body = self.body() | {"prompt": self.question(), "n": self.draw.randint(1, 3)}
        if self.draw.random() < 0.3:
            body["stop"] = ["the"]
        (await http.post("/v1/completions", json=body)).raise_for_status()

    async def stream_chat(self, http: httpx.AsyncClient) -> None:
        messages = [{"role": "user", "content": self.question() * self.draw.randint(1, 20)}]
        body = self.body() | {"messages": messages, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            if self.draw.random() < 0.3:
                await self.stop_any(http)
            async for _ in response.aiter_raw():
                pass

    async def stop_any(self, http: httpx.AsyncClient) -> None:
        """Stop a program's chat by the dashboard's route; its prompt is longer than a completion's and an embedding's."""
        live = (await http.get("/api/requests")).json()["requests"]
        chats = [item for item in live if item["prompt_tokens"] > LONGEST_QUESTION]
        if own := [item for item in chats if item["conversation_id"] is None]:
            await http.post(f"/api/requests/{self.draw.choice(own)['request_id']}/stop")
            self.done["stopped on the dashboard"] += 1

    async def embed(self, http: httpx.AsyncClient) -> None:
        body = {"input": [self.question() for _ in range(self.draw.randint(1, 4))]}
        (await http.post("/v1/embeddings", json=body)).raise_for_status()

    async def too_long(self, http: httpx.AsyncClient) -> None:
        response = await http.post("/v1/completions", json={"prompt": TOO_LONG})
        assert response.status_code == 400, response.text

    def body(self) -> dict:
        return {"max_tokens": self.draw.choice((5, 40, 120)), "temperature": 0.9}

    def question(self) -> str:
        return f"Question {self.draw.randrange(50)}: what is there to say of {self.draw.choice(SUBJECTS)}? "


async def run(app: AppProcess, options: argparse.Namespace) -> Counter[str]:
    """The load, and then rest: idle, and the last sample stored."""
    end = asyncio.get_running_loop().time() + 60 * options.minutes
    load = Load(app, end, options.seed)
    people = [load.person() for _ in range(options.people)]
    programs = [load.program() for _ in range(options.programs)]
    await asyncio.gather(*people, *programs)
    async with connect(app.socket_url) as socket:
        await socket.send(json.dumps({"type": "subscribe", "topic": "stats"}))
        async for text in socket:
            if json.loads(text).get("stats", {}).get("requests") == IDLE:
                break
    await asyncio.sleep(2.5)
    return load.done


def main(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        with running_app(directory, "--num-blocks", NUM_BLOCKS) as app:
            done = asyncio.run(run(app, options))
            stats = app.get("/api/stats")
            metrics = httpx.get(f"{app.url}/metrics", trust_env=False).text
            books = Books(stats, metrics, directory / "pageturn.db", directory / "app.log")
            lines = balance(books)
    wrong = disagreements(lines)
    for name, figures in lines.items():
        told = ", ".join(f"{source} {figure:,}" for source, figure in figures.items())
        print(f"{'WRONG' if name in wrong else 'agree':>6}  {name}: {told}")
    report = {"benchmark": "mixed_load", "done": dict(done), "balance": lines, "disagree": wrong}
    print(json.dumps(report | {"machine": describe()}))
    return bool(wrong)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="a mixed load, and whether all books agree after it"
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--people", type=int, default=4)
    parser.add_argument("--programs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(main(parser.parse_args()))
