"""Leaves a stream after its first piece, with the client in argv[2], at the server in argv[1].

Prints the piece, and how many requests the server runs a little later.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from urllib.request import urlopen

URL, CLIENT = sys.argv[1:3]
POLLS, PAUSE_S = 100, 0.1


async def langchain_pieces() -> AsyncIterator[str]:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model="fake", base_url=f"{URL}/v1", api_key="none", max_retries=0)  # pyright: ignore
    async with aclosing(chat.astream("hello")) as stream:  # pyright: ignore
        async for chunk in stream:
            yield chunk.text


async def litellm_pieces() -> AsyncIterator[str]:
    import litellm

    hello = [{"role": "user", "content": "hello"}]
    where = {"api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0}
    stream = await litellm.acompletion("openai/fake", hello, stream=True, **where)
    try:
        async for chunk in stream:
            yield chunk.choices[0].delta.content or ""
    finally:
        await stream.aclose()


def num_running() -> int:
    with urlopen(f"{URL}/api/stats", timeout=10) as response:
        return json.load(response)["requests"]["running"]


async def main() -> list[object]:
    pieces = {"langchain": langchain_pieces, "litellm": litellm_pieces}[CLIENT]()
    async with aclosing(pieces):  # pyright: ignore
        first = await anext(piece async for piece in pieces if piece)
        assert await asyncio.to_thread(num_running) == 1
    for _ in range(POLLS):
        if await asyncio.to_thread(num_running) == 0:
            break
        await asyncio.sleep(PAUSE_S)
    return [first, await asyncio.to_thread(num_running)]


print(json.dumps(asyncio.run(main())))
