"""What /ws/chat refuses, and what it says when something fails."""

import json
import logging
from collections.abc import Sequence

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from api.websocket import MAX_FRAME_BYTES
from engine.errors import EngineDeadError, ModelLoadError
from engine.sampling_params import SamplingParams
from engine.stats import ModelInfo
from storage.errors import StorageError
from tests.api.conftest import Running, Start
from tests.api.talk import ANSWER
from tests.fake_engine import FakeEngine

BAD_FRAMES = [
    ("{", "invalid_frame", None, None),
    ("[]", "invalid_frame", None, None),
    ("null", "invalid_frame", None, None),
    ("[" * 10_000, "invalid_frame", None, None),
    ('{"type": "send", "content": "\\ud800"}', "invalid_frame", None, None),
    ('{"type": "send", "content": "a", "n": NaN}', "invalid_frame", None, None),
    ({"type": "dance", "request_id": 1}, "invalid_frame", "type", 1),
    ({"request_id": "a"}, "invalid_frame", "type", "a"),
    ({"type": "ping", "request_id": [1]}, "invalid_value", "request_id", None),
    ({"type": "ping", "request_id": True}, "invalid_value", "request_id", None),
    ('{"type": "ping", "request_id": 1e999}', "invalid_value", "request_id", None),
    ('{"type": "ping", "request_id": -1e999}', "invalid_value", "request_id", None),
    ({"type": "ping", "extra": 1, "request_id": 2}, "unknown_field", "extra", 2),
    ({"type": "send"}, "invalid_value", "content", None),
    ({"type": "send", "content": 5}, "invalid_value", "content", None),
    ({"type": "send", "content": "a", "n": "3"}, "invalid_value", "n", None),
    ({"type": "send", "content": "a", "n": 0}, "invalid_value", "n", None),
    ({"type": "send", "content": "a", "n": 65}, "invalid_value", "n", None),
    ({"type": "send", "content": "a", "sampling": []}, "invalid_value", "sampling", None),
    (
        {"type": "send", "content": "a", "sampling": {"temperature": 3}},
        "invalid_value",
        "sampling.temperature",
        None,
    ),
    (
        {"type": "send", "content": "a", "sampling": {"priority": -101}},
        "invalid_value",
        "sampling.priority",
        None,
    ),
    (
        {"type": "send", "content": "a", "sampling": {"use_beam_search": True}},
        "invalid_value",
        "sampling.use_beam_search",
        None,
    ),
    (
        {"type": "send", "content": "a", "sampling": {"logprobs": 2}},
        "invalid_value",
        "sampling.logprobs",
        None,
    ),
    (
        {"type": "send", "content": "a", "sampling": {"zebra": 3}},
        "unknown_field",
        "sampling.zebra",
        None,
    ),
    ({"type": "send", "content": "x" * 3000}, "context_length_exceeded", "content", None),
    (
        {"type": "send", "content": "a", "conversation_id": "no"},
        "not_found",
        "conversation_id",
        None,
    ),
    ({"type": "regenerate", "message_id": "no"}, "not_found", "message_id", None),
    ({"type": "continue", "message_id": "no"}, "not_found", "message_id", None),
    ({"type": "continue", "message_id": "no", "at_token": -1}, "invalid_value", "at_token", None),
    ({"type": "continue", "message_id": "no", "at_token": "1"}, "invalid_value", "at_token", None),
    ({"type": "edit", "message_id": "no", "content": "a"}, "not_found", "message_id", None),
    ({"type": "select", "message_id": "no"}, "not_found", "message_id", None),
    ({"type": "stop", "generation_id": "no"}, "unknown_generation", "generation_id", None),
    ({"type": "stop", "generation_id": "no", "index": -1}, "invalid_value", "index", None),
    ({"type": "attach", "generation_id": "no"}, "unknown_generation", "generation_id", None),
    ({"type": "attach", "generation_id": "no", "from_seq": -1}, "invalid_value", "from_seq", None),
    ({"type": "subscribe", "topic": "weather"}, "invalid_value", "topic", None),
    ({"type": "subscribe", "topic": "conversation"}, "invalid_value", "id", None),
    ({"type": "subscribe", "topic": "stats", "id": "x"}, "invalid_value", "id", None),
    ({"type": "subscribe", "topic": "conversation", "id": "no"}, "not_found", None, None),
]


async def test_a_bad_frame_is_an_error_that_names_the_field(
    running: Running, subtests: pytest.Subtests
) -> None:
    async with running.ready_socket() as client:
        for frame, code, param, request_id in BAD_FRAMES:
            with subtests.test(frame=str(frame)[:80]):
                await client.socket.send(frame if isinstance(frame, str) else json.dumps(frame))
                error = await client.expect("error")
                assert (error["code"], error.get("request_id")) == (code, request_id), error
                assert param in (None, error.get("param")), error
                assert error["message"]
        await client.socket.send(b"binary")
        assert (await client.expect("error"))["code"] == "invalid_frame"
        await client.send("ping", request_id=1.5)
        assert await client.receive() == {"type": "pong", "request_id": 1.5}
        await client.send("subscribe", topic="conversations")
        assert (await client.expect("conversations"))["items"] == []


LONG = "x" * 900_000
LONG_FRAMES = [
    {"type": "send", "content": "a", "conversation_id": LONG},
    {"type": "send", "content": "a", "sampling": {LONG: 1}},
    {"type": "select", "message_id": LONG},
    {"type": "stop", "generation_id": LONG},
    {"type": "attach", "generation_id": LONG},
    {"type": "subscribe", "topic": "conversation", "id": LONG},
    {"type": "subscribe", "topic": LONG},
    {"type": "ping", LONG: 1},
    {"type": LONG},
]


async def test_an_error_does_not_repeat_what_is_long(
    running: Running, subtests: pytest.Subtests
) -> None:
    async with running.ready_socket() as client:
        for frame in LONG_FRAMES:
            with subtests.test(frame=str(frame)[:80]):
                await client.socket.send(json.dumps(frame))
                error = await client.expect("error")
                assert len(json.dumps(error)) < 3000
                assert error["message"]


async def test_a_busy_conversation_refuses_and_changes_nothing(start: Start) -> None:
    running = await start(FakeEngine(token_interval=0.05))
    async with running.ready_socket() as client:
        await client.send("send", content="one")
        started = await client.expect("started")
        await client.send("send", content="two", conversation_id=started["conversation_id"])
        error = await client.skip_to("error")
        assert error["code"] == "conversation_busy"
        await client.until("finished")
    async with running.http() as http:
        tree = (await http.get(f"/api/conversations/{started['conversation_id']}")).json()
    assert [message["content"] for message in tree["messages"]] == ["one", ANSWER]


class DeadEngine(FakeEngine):
    """Its model could not be loaded."""

    @property
    def info(self) -> ModelInfo:
        raise ModelLoadError("architecture Zebra is not supported")

    def check_request(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        raise EngineDeadError("architecture Zebra is not supported")


async def test_a_dead_engine_is_told(start: Start) -> None:
    running = await start(DeadEngine())
    async with running.socket() as client:
        for _ in range(2):
            error = await client.expect("error")
            assert error["code"] == "engine_dead"
            assert error["message"] == "architecture Zebra is not supported"
            await client.send("send", content="hello")
    async with running.http() as http:
        response = await http.post("/v1/completions", json={"prompt": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")


async def test_a_database_that_fails_is_told_without_its_words_and_logged(
    running: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StorageError("the database /secret/pageturn.db failed: disk I/O error")

    monkeypatch.setattr(running.context.chat, "select", fail)
    monkeypatch.setattr(running.context.chat.conversations, "tree", fail)
    async with running.ready_socket() as client:
        with caplog.at_level(logging.ERROR):
            await client.send("select", message_id="x")
            error = await client.expect("error")
    assert (error["code"], "secret" in error["message"]) == ("storage_failed", False)
    assert "disk I/O error" in caplog.text
    async with running.http() as http:
        answer = await http.get("/api/conversations/x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "storage_failed")
    assert "disk full" in answer.json()["error"]["message"]


async def test_what_nobody_foresaw_is_vague_to_the_client_and_logged(
    running: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(message_id: str) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(running.context.chat, "select", fail)
    async with running.ready_socket() as client:
        with caplog.at_level(logging.ERROR, "api"):
            await client.send("select", message_id="x")
            error = await client.expect("error")
        assert error["code"] == "internal_error"
        assert "secret" not in error["message"]
        assert "ZeroDivisionError" in caplog.text
        await client.send("ping")
        await client.expect("pong")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://{}", True),
        ("http://evil.example", False),
        ("null", False),
        ("http://{}.evil.example", False),
    ],
)
async def test_a_browsers_origin_must_be_the_server(
    running: Running, origin: str, allowed: bool
) -> None:
    headers = {"Origin": origin.format(running.address)}
    if allowed:
        async with running.ready_socket(additional_headers=headers):
            return
    with pytest.raises(InvalidStatus) as refusal:
        async with running.socket(additional_headers=headers):
            pass
    assert refusal.value.response.status_code == 403


async def test_a_frame_over_the_limit_closes_the_socket(running: Running) -> None:
    async with running.ready_socket() as client:
        await client.socket.send("x" * (MAX_FRAME_BYTES + 1))
        with pytest.raises(ConnectionClosed) as closed:
            await client.receive()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


async def test_compression_is_off(running: Running) -> None:
    async with running.ready_socket() as client:
        assert client.socket.protocol.extensions == []


async def test_a_system_prompt_comes_with_a_new_conversation_only(start: Start) -> None:
    running = await start(FakeEngine())
    async with running.ready_socket() as client:
        await client.send("send", content="hello", system_prompt="be kind")
        started = await client.expect("started")
        assert started["dropped_messages"] == 0
        await client.until("finished")
        named = {"conversation_id": started["conversation_id"]}
        await client.send("send", content="more", system_prompt="be rude", **named)
        error = await client.expect("error")
        assert (error["code"], error["param"]) == ("invalid_value", "system_prompt")
        await client.send("send", content="more", sampling={"temperatures": [1]}, n=2, **named)
        error = await client.expect("error")
        assert (error["code"], error["param"]) == ("invalid_value", "sampling.temperatures")
