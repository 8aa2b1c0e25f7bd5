"""Clients of the page's kind for bench_page: `python -m benchmarks.page_clients URL CLIENTS CANDIDATES TOKENS`

Each sends one message on a socket of its own and reads rendered text to the end. Prints the tokens of all as JSON.
"""

import asyncio
import json
import sys

from websockets.asyncio.client import connect


async def talk(url: str, number: int, candidates: int, tokens: int) -> int:
    """One turn; returns how many tokens came."""
    sampling = {"max_tokens": tokens, "ignore_eos": True, "seed": number}
    frame = {
        "type": "send",
        "content": f"Tell story number {number}.",
        "n": candidates,
        "sampling": sampling,
    }
    count = 0
    async with connect(f"{url.replace('http', 'ws')}/ws/chat?format=html") as socket:
        await socket.send(json.dumps(frame))
        async for text in socket:
            event = json.loads(text)
            if event["type"] == "candidate":
                count += event["usage"]["completion_tokens"]
            if event["type"] in ("finished", "error"):
                break
    return count


async def main(url: str, clients: int, candidates: int, tokens: int) -> None:
    turns = (talk(url, number, candidates, tokens) for number in range(clients))
    print(json.dumps({"tokens": sum(await asyncio.gather(*turns))}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
