"""How a chat's prompt is made, and what its stream says of usage."""

import json
from typing import Any

from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine

HELLO: Any = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


async def test_options_of_the_template_reach_it(running: Running) -> None:
    answer = {"role": "assistant", "content": [{"type": "text", "text": "so"}]}
    async with running.http() as http:
        for body in (
            {"messages": HELLO},
            {"messages": HELLO, "add_generation_prompt": False},
            {"messages": [*HELLO, answer], "continue_final_message": True},
            {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}},
        ):
            for path in (CHAT, "/tokenize"):
                assert (await http.post(path, json=body)).status_code == 200
    options = [seen[1] for seen in running.engine.rendered[::2]]
    assert options == [seen[1] for seen in running.engine.rendered[1::2]]
    assert [each.add_generation_prompt for each in options] == [True, False, False, True]
    assert [each.continue_final_message for each in options] == [False, False, True, False]
    assert [dict(each.variables) for each in options] == [{}, {}, {}, {"enable_thinking": False}]
    assert running.engine.rendered[4][0][-1] == {"role": "assistant", "content": "so"}


async def chunks(running: Running, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with running.http() as http:
        response = await http.post(CHAT, json=body | {"messages": HELLO, "stream": True})
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_usage_grows_with_every_chunk(start: Start) -> None:
    running = await start(FakeEngine(lambda prompt, index: list("abcdef")))
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = await chunks(running, {"n": 2, "max_tokens": 3, "stream_options": options})
    prompt = len("<user>hello\n")
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    for chunk in found:
        usage = chunk["usage"]
        assert usage["prompt_tokens"] == prompt
        assert usage["total_tokens"] == prompt + usage["completion_tokens"]
    assert found[-1]["choices"] == []
    assert "prompt_tokens_details" in found[-1]["usage"]


async def test_usage_stands_in_no_chunk_unless_it_is_wanted(running: Running) -> None:
    found = await chunks(running, {"stream_options": {"continuous_usage_stats": True}})
    assert all("usage" not in chunk for chunk in found)


async def test_the_role_comes_first_and_the_finish_reason_last(running: Running) -> None:
    found = await chunks(running, {"n": 3})
    for index in range(3):
        mine = [c for chunk in found for c in chunk["choices"] if c["index"] == index]
        assert [choice["delta"].get("role") for choice in mine] == ["assistant"] + [None] * (
            len(mine) - 1
        )
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["stop"]
    order = [chunk["choices"][0]["index"] for chunk in found]
    assert order[:6] == [0, 1, 2, 0, 1, 2]
