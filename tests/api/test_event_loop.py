"""The event loop while the engine computes and a long text is tokenised: neither holds it."""

import asyncio
import threading
import time
from asyncio.events import Handle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.async_engine import AsyncEngine
from engine.loader.tokenizer import load_tokenizer
from engine.tokenizer import Tokenizer
from engine.worker import Codec, LoadedModel
from tests.api.conftest import Running, serve
from tests.engine.rig import CONFIG, GatedRunner, Letters
from tests.fakes import make_config, pseudo_random_token

TEXT = "word " * 40_000
LONGEST_MS = 50.0


class HeldLetters(Letters):
    """Tokenises when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def encode(self, text: str) -> list[int]:
        self.has_begun.set()
        assert self.may_end.wait(20), "nobody let the tokenizer go on"
        return super().encode(text)


@asynccontextmanager
async def serving(codec: Codec, data_dir: Path) -> AsyncIterator[tuple[Running, GatedRunner]]:
    """A server on the real engine, with a fake model."""
    runner = GatedRunner(make_config(), pseudo_random_token)
    engine: Any = AsyncEngine(CONFIG, load=lambda config, progress: LoadedModel(runner, codec))
    async with serve(engine, data_dir) as running:
        await engine.wait_ready()
        try:
            yield running, runner
        finally:
            runner.release()


async def test_health_answers_in_the_middle_of_a_step_and_of_a_tokenisation(tmp_path: Path) -> None:
    letters = HeldLetters()
    async with serving(letters, tmp_path) as (running, runner), running.http() as http:
        runner.hold()
        body = {"prompt": [1, 2, 3], "max_tokens": 1}
        computing = asyncio.create_task(http.post("/v1/completions", json=body))
        await runner.held()
        tokenising = asyncio.create_task(http.post("/tokenize", json={"prompt": "ĀĂ"}))
        assert await asyncio.to_thread(letters.has_begun.wait, 20)
        for _ in range(100):
            assert (await http.get("/health")).status_code == 200
        assert not computing.done()
        assert not tokenising.done()
        letters.may_end.set()
        runner.release()
        assert (await computing).status_code == 200
        assert (await tokenising).json()["tokens"] == [0, 2]


def watch_callbacks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Milliseconds of processor time of each callback of event loops from now on: how long it holds its loop on a free core."""
    durations: list[float] = []
    run: Callable[[Handle], None] = Handle._run

    def timed(handle: Handle) -> None:
        started = time.thread_time()
        run(handle)
        durations.append((time.thread_time() - started) * 1e3)

    monkeypatch.setattr(Handle, "_run", timed)
    return durations


@pytest.mark.model
async def test_no_part_of_a_long_text_holds_the_loop(
    tmp_path: Path, builtin_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer(load_tokenizer(builtin_model_path))
    async with serving(tokenizer, tmp_path) as (running, _), running.http() as http:
        await http.post("/tokenize", json={"prompt": "warm"})
        durations = watch_callbacks(monkeypatch)
        as_prompt = await http.post("/tokenize", json={"prompt": TEXT})
        message = {"role": "user", "content": TEXT}
        as_message = await http.post("/tokenize", json={"messages": [message]})
        too_long = await http.post("/v1/completions", json={"prompt": TEXT})
    assert as_prompt.json()["count"] > 30_000
    assert as_message.json()["count"] > 30_000
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    assert len(durations) > 50
    assert max(durations) < LONGEST_MS
