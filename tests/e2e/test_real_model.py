"""The whole product with the built-in model: sockets, HTTP, shared prompt blocks, start and stop."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect

from tests.e2e.app_process import AppProcess, running_app

pytestmark = pytest.mark.model

PROMPTS = [
    f"{verb} {noun} in one sentence."
    for verb in ("Describe", "Explain", "Praise", "Define")
    for noun in ("a river", "gravity", "bread", "the number seven")
]
GREEDY = {"temperature": 0.0, "max_tokens": 24}


@pytest.fixture
def app(model_server: AppProcess) -> AppProcess:
    return model_server


async def frames_of(socket: ClientConnection, frame: dict) -> AsyncIterator[dict]:
    """Send a frame; yield what comes back until the generation has finished."""
    await socket.send(json.dumps(frame))
    async for text in socket:
        event = json.loads(text)
        yield event
        if event["type"] in ("finished", "error"):
            return


async def chat(app: AppProcess, **frame: object) -> tuple[list[str], list[dict]]:
    """One `send` on a socket of its own: the texts by index and all frames."""
    texts: dict[int, str] = {}
    frames = []
    async with connect(app.socket_url) as socket:
        async for event in frames_of(socket, {"type": "send", **frame}):
            frames.append(event)
            if event["type"] == "delta":
                texts[event["index"]] = texts.get(event["index"], "") + event["text"]
    assert frames[-1]["type"] == "finished", frames[-1]
    return [texts[index] for index in sorted(texts)], frames


async def test_sixteen_chats_at_once_say_what_each_says_alone(app: AppProcess) -> None:
    together = await asyncio.gather(*(chat(app, content=p, sampling=GREEDY) for p in PROMPTS))
    assert app.live_blocks() == 0
    for prompt, (texts, _) in zip(PROMPTS, together, strict=True):
        alone, _ = await chat(app, content=prompt, sampling=GREEDY)
        assert alone == texts, prompt
    assert app.live_blocks() == 0


async def test_three_candidates_hold_their_prompt_once(app: AppProcess) -> None:
    story = "Once there was a lighthouse keeper who counted ships. " * 50
    sampling = {"temperature": 1.0, "seed": 11, "max_tokens": 40}
    peak = {"shared": 0, "private": 0}

    async def watch() -> None:
        while True:
            blocks = (await asyncio.to_thread(app.get, "/api/stats"))["blocks"]
            if blocks["shared"] >= peak["shared"]:
                peak.update(shared=blocks["shared"], private=blocks["private"])
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    first, frames = await chat(app, content=story, n=3, sampling=sampling)
    watcher.cancel()
    usage = [f["usage"] for f in frames if f["type"] == "candidate"]
    prompt_tokens = usage[0]["prompt_tokens"]
    assert prompt_tokens > 500
    assert peak["shared"] in (prompt_tokens // 16, prompt_tokens // 16 + 1)
    assert peak["private"] <= 3 * (40 // 16 + 2)
    assert len(set(first)) == 3
    assert len({text.split()[0] for text in first}) > 1, "the candidates share their first token"
    again, _ = await chat(app, content=story, n=3, sampling=sampling)
    assert again == first
    assert app.live_blocks() == 0


async def test_openai_client_streams_and_does_not(app: AppProcess) -> None:
    client = AsyncOpenAI(base_url=app.url + "/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": "Name three colours."}]
    request = {"model": "smollm2-135m", "messages": messages, "max_tokens": 16, "seed": 5, "n": 2}
    async with client:
        whole = await client.chat.completions.create(**request, temperature=0.9)
        streamed: dict[int, str] = {0: "", 1: ""}
        async for chunk in await client.chat.completions.create(
            **request, temperature=0.9, stream=True
        ):
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
    assert [choice.message.content for choice in whole.choices] == [streamed[0], streamed[1]]
    assert streamed[0] != streamed[1]


async def test_embeddings_beside_answers_are_those_alone(app: AppProcess) -> None:
    client = AsyncOpenAI(base_url=app.url + "/v1", api_key="none", max_retries=0)
    texts = ["What is the capital of France?", "Paris is the capital of France.", "x = 1\n" * 300]
    model = "smollm2-135m"
    async with client:
        beside = asyncio.create_task(chat(app, content=PROMPTS[0], sampling=GREEDY))
        together = await client.embeddings.create(model=model, input=texts)
        await beside
        alone = [await client.embeddings.create(model=model, input=text) for text in texts]
        short = await client.embeddings.create(model=model, input=texts[0], dimensions=64)
    vectors = [item.embedding for item in together.data]
    question, statement, code = vectors
    for vector, single in zip(vectors, alone, strict=True):
        assert sum(a * b for a, b in zip(vector, single.data[0].embedding, strict=True)) > 0.9999
    assert together.usage.prompt_tokens == sum(single.usage.prompt_tokens for single in alone)
    assert (len(question), len(short.data[0].embedding)) == (576, 64)
    assert sum(value * value for value in short.data[0].embedding) == pytest.approx(1.0)

    def likeness(other: list[float]) -> float:
        return sum(a * b for a, b in zip(question, other, strict=True))

    assert likeness(statement) > likeness(code)
    assert app.live_blocks() == 0


async def test_openai_client_gets_the_best_of_a_beam_search(app: AppProcess) -> None:
    client = AsyncOpenAI(base_url=app.url + "/v1", api_key="none", max_retries=0)
    prompt = "The history of tea is long and"
    beams = {"use_beam_search": True, "best_of": 4, "length_penalty": 0.0}
    async with client:
        completion = await client.completions.create(
            model="smollm2-135m", prompt=prompt, max_tokens=10, n=2, logprobs=1, extra_body=beams
        )
    logprobs = [choice.logprobs for choice in completion.choices]
    scores = [sum(shown.token_logprobs or []) for shown in logprobs if shown]
    assert len(scores) == 2
    assert scores[0] >= scores[1]
    assert completion.choices[0].text != completion.choices[1].text
    assert app.live_blocks() == 0


async def test_a_stop_frees_the_blocks_at_once(app: AppProcess) -> None:
    async with connect(app.socket_url) as socket:
        frame = {
            "type": "send",
            "content": "Count to a thousand.",
            "n": 3,
            "sampling": {"ignore_eos": True, "max_tokens": 800},
        }
        reasons = []
        async for event in frames_of(socket, frame):
            if event["type"] == "delta" and not reasons:
                await socket.send(
                    json.dumps({"type": "stop", "generation_id": event["generation_id"]})
                )
                reasons.append("sent")
            if event["type"] == "candidate":
                reasons.append(event["finish_reason"])
    assert reasons == ["sent", "abort", "abort", "abort"]
    assert app.live_blocks() == 0


def test_sigterm_in_the_middle_of_an_answer_ends_cleanly(
    tmp_path: Path, builtin_model_path: Path
) -> None:
    started = time.monotonic()
    with running_app(tmp_path, "--shutdown-timeout", "1") as app:
        ready_after = time.monotonic() - started

        async def terminate_at_the_first_word() -> None:
            async with connect(app.socket_url) as socket:
                frame = {
                    "type": "send",
                    "content": "Tell a long story.",
                    "sampling": {"ignore_eos": True, "max_tokens": 1000},
                }
                async for event in frames_of(socket, frame):
                    if event["type"] == "delta":
                        app.process.send_signal(signal.SIGTERM)
                        return

        asyncio.run(terminate_at_the_first_word())
        assert app.process.wait(timeout=15) == 0, app.log.read_text()
    assert "Traceback" not in app.log.read_text()
    assert ready_after < 60
    with running_app(tmp_path) as app:
        listed = app.get("/api/conversations")
        conversation = (listed["items"] if isinstance(listed, dict) else listed)[0]
        tree = app.get(f"/api/conversations/{conversation['id']}")
        assert next(m["status"] for m in tree["messages"]) == "done"
        assert all(m["status"] != "generating" for m in tree["messages"])
        assert any(m["content"] for m in tree["messages"] if m["role"] == "assistant")
