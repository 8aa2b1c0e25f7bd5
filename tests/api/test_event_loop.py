"""The event loop while the engine computes, a long text is tokenised, or an answer is large: nothing holds it."""

import asyncio
import gc
import json
import threading
import time
from asyncio.events import Handle
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from engine.async_engine import AsyncEngine
from engine.loader.tokenizer import load_tokenizer
from engine.tokenizer import Tokenizer
from engine.worker import Codec, LoadedModel
from tests.api.conftest import Running, Start, serve
from tests.engine.rig import CONFIG, GatedRunner, Letters
from tests.fake_engine import FakeEngine
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
async def serving(
    codec: Codec, data_dir: Path, **limits: int
) -> AsyncIterator[tuple[Running, GatedRunner]]:
    """A server on the real engine, with a fake model."""
    runner = GatedRunner(make_config(**limits), pseudo_random_token)
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
    loop_thread = threading.current_thread()

    def timed(handle: Handle) -> None:
        started = time.thread_time()
        run(handle)
        if threading.current_thread() is loop_thread:
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


@pytest.fixture
def _no_collections() -> Iterator[None]:
    """The app has set aside what it has loaded; of the tests' own objects there are more than a collection gets through."""
    gc.disable()
    yield
    gc.enable()


def in_a_thread(call: Callable[[httpx.Client], Any], url: str) -> Coroutine[Any, Any, Any]:
    """A client's work, so that it is not the server's event loop that does it."""

    def work() -> Any:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            return call(http)

    return asyncio.to_thread(work)


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [3 + i % 250 for i in range(3000)], "echo": True, "max_tokens": 0},
        {"prompt": [[3 + i % 250 for i in range(16)]] * 64, "n": 3, "echo": True, "max_tokens": 0},
        {"prompt": [5, 6], "n": 64, "max_tokens": 50, "ignore_eos": True},
    ],
)
async def test_no_part_of_a_large_answer_holds_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    limits = {"num_blocks": 2000, "max_model_len": 4000, "max_num_seqs": 64}
    async with serving(Letters(), tmp_path, **limits) as (running, _):
        durations = watch_callbacks(monkeypatch)
        for streams in (False, True):
            whole = body | {"logprobs": 20, "stream": streams}
            answer = await in_a_thread(
                lambda http, whole=whole: http.post("/v1/completions", json=whole), running.url
            )
            assert answer.status_code == 200
            assert len(answer.content) > 500_000
    assert max(durations) < LONGEST_MS


@pytest.mark.usefixtures("_no_collections")
async def test_no_part_of_a_large_prompt_of_ids_holds_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ",".join(str(i % 250) for i in range(1_500_000))
    content = f'{{"max_tokens": 1, "prompt": [{ids}]}}'.encode()
    async with serving(Letters(), tmp_path) as (running, _):
        durations = watch_callbacks(monkeypatch)
        answer = await in_a_thread(
            lambda http: http.post("/v1/completions", content=content), running.url
        )
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert max(durations) < LONGEST_MS


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize(
    ("path", "content", "param"),
    [
        ("/detokenize", f'{{"tokens": [{"7," * (2**20 - 1)}7]}}', None),
        ("/detokenize", f'{{"tokens": [{"1.5," * 1_000_000}7]}}', "tokens[0]"),
        ("/tokenize", f'{{"messages": [{"1," * 1_000_000}1]}}', "messages[0]"),
        ("/v1/chat/completions", f'{{"messages": [{"1," * 1_000_000}1]}}', "messages[0]"),
        ("/v1/chat/completions", f'{{"messages": [{"{}," * 1_000_000}{{}}]}}', "messages"),
        (
            "/v1/completions",
            f'{{"prompt": "a", {", ".join(f""" "{i}": 1""" for i in range(300_000))}}}',
            None,
        ),
    ],
    ids=["ids", "fractions", "no messages", "no turns", "empty turns", "fields"],
)
async def test_no_part_of_a_large_list_or_object_holds_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, content: str, param: str | None
) -> None:
    async with serving(Letters(), tmp_path) as (running, _):
        durations = watch_callbacks(monkeypatch)
        answer = await in_a_thread(lambda http: http.post(path, content=content), running.url)
    assert answer.json().get("error", {"param": None})["param"] == param
    assert max(durations) < LONGEST_MS


def long_conversation(num_messages: int) -> dict[str, Any]:
    """A file with one path."""
    ids = [f"m{i}" for i in range(num_messages)]
    messages = {
        own: {
            "id": own,
            "parentId": before,
            "childrenIds": [after] if after else [],
            "role": "user" if i % 2 == 0 else "assistant",
            "content": f"message {i} " * 20,
        }
        for i, (before, own, after) in enumerate(
            zip([None, *ids], ids, [*ids[1:], None], strict=False)
        )
    }
    return {"title": "long", "chat": {"history": {"messages": messages, "currentId": ids[-1]}}}


@pytest.mark.usefixtures("_no_collections")
async def test_no_part_of_a_large_conversation_holds_the_loop(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.dumps([long_conversation(4000)])
    durations = watch_callbacks(monkeypatch)
    path = "/api/conversations"
    imported = await in_a_thread(
        lambda http: http.post(f"{path}/import", content=content), running.url
    )
    (conversation_id,) = imported.json()["conversation_ids"]
    own = f"{path}/{conversation_id}"
    addresses = [own, f"{own}/outline", f"{own}/export", f"{path}/export"]
    addresses += [f"{each}?format=markdown" for each in addresses[2:]]
    for address in addresses:
        answer = await in_a_thread(lambda http, address=address: http.get(address), running.url)
        assert answer.status_code == 200
    async with running.ready_socket(max_size=None) as client:
        await client.send("subscribe", topic="conversation", id=conversation_id)
        text = str(await client.socket.recv())
    assert text.count('"role":') == 4000
    assert max(durations) < LONGEST_MS


@pytest.mark.usefixtures("_no_collections")
async def test_no_part_of_a_large_pool_holds_the_loop(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start(FakeEngine(num_blocks=100_000))
    durations = watch_callbacks(monkeypatch)
    answer = await in_a_thread(lambda http: http.get("/api/blocks"), running.url)
    assert len(answer.json()["blocks"]) == 100_000
    assert max(durations) < LONGEST_MS
