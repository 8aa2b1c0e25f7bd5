"""What programs do with litellm, against the server in argv[1]; prints what came of it."""

import asyncio
import json
import sys
from typing import Any

import litellm
from pydantic import BaseModel

WHERE: dict[str, Any] = {"api_base": sys.argv[1] + "/v1", "api_key": "none", "num_retries": 0}
MODEL = "openai/fake"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


class City(BaseModel):
    """A city."""

    name: str
    country: str


def failure_of(**fields: Any) -> str:
    try:
        litellm.completion(**{"model": MODEL, "messages": HELLO, **WHERE, **fields})
    except Exception as error:
        return type(error).__name__
    return "none"


async def main() -> dict[str, Any]:
    """Every call once."""
    call: dict[str, Any] = {"model": MODEL, "messages": HELLO, **WHERE}
    whole = litellm.completion(**call)
    stream = await litellm.acompletion(**call, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    many = litellm.completion(**call, n=3)
    called = litellm.completion(**call, tools=[TOOL])
    embedded = litellm.embedding(model=MODEL, input=["a", "b"], **WHERE)
    asked = [{"role": "user", "content": "Name one."}]
    city = litellm.completion(**call | {"messages": asked}, response_format=City)
    judged = litellm.completion(**call, logprobs=True, top_logprobs=2).choices[0].logprobs
    return {
        "city": City.model_validate_json(city.choices[0].message.content).model_dump(),
        "judged": [(each.token, len(each.top_logprobs)) for each in judged.content[:2]],
        "text": whole.choices[0].message.content,
        "tokens": whole.usage.completion_tokens,
        "streamed": "".join(pieces),
        "many": [choice.message.content for choice in many.choices],
        "calls": [c.function.name for c in called.choices[0].message.tool_calls],
        "embedded": [len(item["embedding"]) for item in embedded.data],
        "errors": [failure_of(temperature=3), failure_of(model="openai/other")],
    }


print(json.dumps(asyncio.run(main())))
