"""Every example of docs/api.md is run as it stands, but for the address and the model's name."""

import asyncio
import io
import json
import re
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from engine.sampling_params import SamplingParams
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream

DOC = (Path(__file__).resolve().parents[2] / "docs/api.md").read_text()
ANSWERS = {
    "raining in Oslo": "Take an umbrella.",
    "weather in Oslo": '[{"name": "weather", "arguments": {"city": "Oslo"}}]',
    "best colour": "Blue",
    "colours": "Red",
    "city in Europe": '{"name": "Oslo", "country": "Norway"}',
    "I love this film!": "positive",
}
PRINTED = [
    ["Red", "Red", "Red"],
    ["Blue", "Blue"],
    ["weather Oslo", "Take an umbrella."],
    ["Oslo is in Norway", "positive"],
    ["Red", "Red 3"],
    ["a boat: 1.00", "boat a: 1.00", "the moon: 0.47"],
]


def examples(language: str) -> list[str]:
    """The code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.M | re.S)


def say(prompt: Sequence[int], index: int) -> list[str]:
    """An answer to what the examples ask, a letter a token."""
    text = bytes(prompt).decode()
    return list(next(answer for asked, answer in ANSWERS.items() if asked in text))


def for_server(example: str, running: Running) -> str:
    return example.replace("http://127.0.0.1:7860", running.url).replace("smollm2-135m", "fake")


def printed_by(source: str) -> list[str]:
    output = io.StringIO()
    names: dict[str, Any] = {}
    with redirect_stdout(output):
        exec(compile(source, "docs/api.md", "exec"), names)
    names["client"].close()
    return output.getvalue().splitlines()


class Talking(FakeEngine):
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        super().__init__(say)
        self.asked: list[SamplingParams] = []

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> FakeStream:
        self.asked.append(params)
        return super().submit(prompt_token_ids, params)


@pytest.fixture
async def talking(start: Start) -> AsyncIterator[Running]:
    """What is asked of it has an end that a tiny model comes to, whatever it says."""
    engine = Talking()
    yield await start(engine)
    assert all(0 < (params.max_tokens or 0) <= 100 for params in engine.asked)


def test_no_example_is_left_out() -> None:
    assert len(examples("python")) == len(PRINTED)
    assert DOC.count("\n```") == 2 * sum(len(examples(kind)) for kind in ("python", "sh", "js"))


@pytest.mark.parametrize("number", range(len(PRINTED)))
async def test_python(talking: Running, number: int) -> None:
    source = for_server(examples("python")[number], talking)
    assert await asyncio.to_thread(printed_by, source) == PRINTED[number]


async def test_curl(talking: Running) -> None:
    """What curl would post."""
    commands = re.findall(r"^curl .*?(?=^curl |\Z)", "".join(examples("sh")), re.M | re.S)
    answers = []
    async with talking.http() as http:
        for command in commands:
            _, url, *options = shlex.split(for_server(command, talking))
            given = dict(zip(options[::2], options[1::2], strict=True))
            assert given["-H"] == "Content-Type: application/json"
            body = json.loads(given["-d"])
            if "tokens" in body:  # the scripted engine's are bytes
                body["tokens"] = [token_id % 256 for token_id in body["tokens"]]
            response = await http.post(url, json=body)
            assert response.status_code == 200, response.text
            answers.append(response.text)
    stream, tokens, prompt = answers
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Red"
    assert stream.endswith("data: [DONE]\n\n")
    assert json.loads(tokens)["count"] == len("Name three colours.")
    ids = bytes(token_id % 256 for token_id in (5820, 1296, 14797, 30))
    assert json.loads(prompt) == {"prompt": ids.decode(errors="replace")}
