"""What programs do with langchain-openai, against the server in argv[1]; prints what came of it."""

import asyncio
import json
import sys
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import BadRequestError, NotFoundError
from pydantic import BaseModel

URL = sys.argv[1] + "/v1"


def chat(**fields: Any) -> ChatOpenAI:
    known: dict[str, Any] = {"model": "fake", "base_url": URL, "api_key": "none", "max_retries": 0}
    return ChatOpenAI(**known | fields)


class City(BaseModel):
    """A city."""

    name: str
    country: str


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"rain in {city}"


def failure_of(**fields: Any) -> str:
    try:
        chat(**fields).invoke("hello")
    except BadRequestError:
        return "BadRequestError"
    except NotFoundError:
        return "NotFoundError"
    return "none"


async def main() -> dict[str, Any]:
    """Every call once."""
    whole = chat().invoke([("system", "Be brief."), ("human", "hello")])
    pieces = [chunk.text async for chunk in chat(stream_usage=True).astream("hello")]
    many = chat(n=3).generate([[HumanMessage("hello")]])
    called = chat().bind_tools([weather]).invoke("hello")
    streamed = None
    for chunk in chat().bind_tools([weather]).stream("hello"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    embeddings = OpenAIEmbeddings(
        model="fake", base_url=URL, api_key="none", check_embedding_ctx_length=False
    )
    judged = chat(logprobs=True, top_logprobs=2).invoke("hello").response_metadata["logprobs"]
    return {
        "city": chat().with_structured_output(City).invoke("Name one.").model_dump(),
        "judged": [(each["token"], len(each["top_logprobs"])) for each in judged["content"][:2]],
        "text": whole.text,
        "usage": whole.usage_metadata,
        "streamed": "".join(pieces),
        "many": [generation.text for generation in many.generations[0]],
        "calls": [(call["name"], call["args"]) for call in called.tool_calls],
        "streamed_calls": [(call["name"], call["args"]) for call in streamed.tool_calls],
        "responses": chat(use_responses_api=True).invoke("hello").text,
        "embedded": [len(vector) for vector in embeddings.embed_documents(["a", "b"])],
        "errors": [failure_of(temperature=3), failure_of(model="other")],
    }


print(json.dumps(asyncio.run(main())))
