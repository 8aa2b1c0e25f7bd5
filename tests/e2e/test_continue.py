"""Continuing answers of the built-in model: shared blocks, and the text that would have come anyway."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from tests.e2e.app_process import AppProcess

pytestmark = pytest.mark.model

BLOCK_SIZE = 16
QUESTION = "Explain how a printing press works, and who needs one. " * 3
GREEDY = {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True}


@pytest.fixture(scope="module", params=["model_app", "exact_app"])
def app(request: pytest.FixtureRequest) -> AppProcess:
    return request.getfixturevalue(request.param)


@dataclass
class Turn:
    """What came of one frame: ids of the answers, their texts and ends by index."""

    message_ids: list[str] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    ends: dict[int, dict] = field(default_factory=dict)

    def take(self, frame: dict) -> None:
        match frame["type"]:
            case "started":
                self.message_ids = [c["message_id"] for c in frame["candidates"]]
            case "snapshot":
                self.texts = dict(enumerate(frame["texts"]))
            case "delta":
                self.texts[frame["index"]] = self.texts.get(frame["index"], "") + frame["text"]
            case "candidate":
                self.ends[frame["index"]] = frame

    @property
    def cached_tokens(self) -> int:
        return self.ends[0]["usage"]["prompt_tokens_details"]["cached_tokens"]

    @property
    def prompt_tokens(self) -> int:
        return self.ends[0]["usage"]["prompt_tokens"]


async def run(app: AppProcess, **frame: object) -> Turn:
    """Send a frame that starts a generation, and follow it to its end."""
    turn = Turn()
    async with connect(app.socket_url) as socket:
        await socket.send(json.dumps(frame))
        async for text in socket:
            event = json.loads(text)
            assert event["type"] != "error", event
            turn.take(event)
            if event["type"] == "finished":
                return turn
    raise AssertionError("the socket was closed")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def original(app: AppProcess) -> Turn:
    """The answer that tests continue; they add others beside it."""
    return await run(app, type="send", content=QUESTION, sampling=GREEDY)


async def ends(app: AppProcess, message_id: str) -> list[int]:
    tokens = await asyncio.to_thread(app.get, f"/api/messages/{message_id}/tokens")
    return tokens["ends"]


async def test_a_greedy_answer_goes_on_as_it_did_from_any_token(
    app: AppProcess, original: Turn
) -> None:
    (answer,) = original.message_ids
    places = await ends(app, answer)
    assert len(places) == 60
    assert places[-1] == len(original.texts[0])
    for at_token in (1, 17, 33, 48, 59):
        sampling = GREEDY | {"max_tokens": 60 - at_token}
        again = await run(
            app, type="continue", message_id=answer, at_token=at_token, sampling=sampling
        )
        assert again.texts == original.texts, at_token
        assert again.prompt_tokens == original.prompt_tokens + at_token
        assert again.ends[0]["usage"]["completion_tokens"] == 60 - at_token
        full_blocks = (again.prompt_tokens - 1) // BLOCK_SIZE
        assert again.cached_tokens >= full_blocks * BLOCK_SIZE
        assert await ends(app, again.message_ids[0]) == places
    assert app.live_blocks() == 0


async def test_three_ways_share_everything_up_to_the_cut(app: AppProcess, original: Turn) -> None:
    (answer,) = original.message_ids
    cut = (await ends(app, answer))[39]
    sampling = {"temperature": 1.0, "seed": 3, "max_tokens": 24, "ignore_eos": True}
    ways = await run(app, type="continue", message_id=answer, at_token=40, n=3, sampling=sampling)
    assert len(set(ways.texts.values())) == 3
    assert {text[:cut] for text in ways.texts.values()} == {original.texts[0][:cut]}
    shared = ways.prompt_tokens // BLOCK_SIZE
    for index in range(3):
        kv = ways.ends[index]["kv"]
        assert kv["blocks_shared"] in (shared, shared + 1)
        assert kv["blocks_private"] <= 24 // BLOCK_SIZE + 2
    assert ways.cached_tokens >= (ways.prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert app.live_blocks() == 0


async def test_an_answer_at_its_limit_goes_on_and_on(app: AppProcess, original: Turn) -> None:
    short = await run(app, type="send", content=QUESTION, sampling=GREEDY | {"max_tokens": 20})
    for _ in range(2):
        assert short.ends[0]["finish_reason"] == "length"
        (answer,) = short.message_ids
        short = await run(
            app, type="continue", message_id=answer, sampling=GREEDY | {"max_tokens": 20}
        )
    assert short.texts == original.texts
