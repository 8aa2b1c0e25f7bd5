"""langchain-openai: chat, stream, n, logprobs, structured output, tools, the newer API, embeddings, errors."""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from tests.api.conftest import Start
from tests.clients.conftest import CITY, LEAVING, Run, endless, needs, saying

pytestmark = needs("langchain_openai")
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Łódź"}}</tool_call>'


async def test_ordinary_calls(start: Start, script: Callable[..., Awaitable[Any]]) -> None:
    running = await start(saying(CALL, "two", "three"))
    found = await script("langchain_calls.py", running)
    usage = found.pop("usage")
    assert (usage["input_tokens"], usage["output_tokens"]) == (30, len(CALL))
    assert found == {
        "city": CITY,
        "judged": [["<", 2], ["t", 2]],
        "text": CALL,
        "streamed": CALL,
        "many": [CALL, "two", "three"],
        "calls": [["weather", {"city": "Łódź"}]],
        "streamed_calls": [["weather", {"city": "Łódź"}]],
        "responses": CALL,
        "embedded": [8, 8],
        "errors": ["BadRequestError", "NotFoundError"],
    }
    (schema,) = running.engine.schemas
    assert schema["properties"].keys() == CITY.keys()


async def test_a_stream_that_is_left_ends_its_request(start: Start, run: Run) -> None:
    running = await start(endless())
    output = await run(sys.executable, LEAVING, running.url, "langchain")
    assert json.loads(output.splitlines()[-1]) == ["a", 0]
    assert running.engine.live == {}
