"""litellm: chat, stream, n, logprobs, structured output, tools, embeddings, errors."""

from collections.abc import Awaitable, Callable
from typing import Any

from tests.api.conftest import Start
from tests.clients.conftest import CITY, needs, saying

pytestmark = needs("litellm")
CALL = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'


async def test_ordinary_calls(start: Start, script: Callable[..., Awaitable[Any]]) -> None:
    running = await start(saying(CALL, "two", "three"))
    found = await script("litellm_calls.py", running, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert found == {
        "city": CITY,
        "judged": [["<", 2], ["t", 2]],
        "text": CALL,
        "tokens": len(CALL),
        "streamed": CALL,
        "many": [CALL, "two", "three"],
        "calls": ["weather"],
        "embedded": [8, 8],
        "errors": ["BadRequestError", "NotFoundError"],
    }
    (schema,) = running.engine.schemas
    assert schema["properties"].keys() == CITY.keys()
