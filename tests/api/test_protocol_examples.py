"""The session in docs/protocol.md is held with a server: it answers as is shown there."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from api.frames import CLIENT_TYPES
from tests.api.conftest import Client, Start
from tests.fake_engine import FakeEngine

DOC = (Path(__file__).resolve().parents[2] / "docs/protocol.md").read_text()
LINES = "".join(re.findall(r"^```jsonl\n(.*?)^```$", DOC, re.M | re.S)).splitlines()
ID = re.compile(r"[cgm]\d")
MEASURED = {"timings", "kv", "computed_tokens", "prompt_tokens", "total_tokens"}


def say(prompt: Sequence[int], index: int) -> list[str]:
    """Short answers, but for a story that does not end."""
    return ["Once "] * 10_000 if b"story" in bytes(prompt) else ["Red, ", "green, ", "blue."]


class Ids:
    """What the ids of the document are in this session."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {"smollm2-135m": "fake"}

    def put_in(self, text: str) -> str:
        return re.sub(r'"([cgm]\d)"', lambda match: f'"{self._known[match[1]]}"', text)

    def compare(self, shown: Any, got: Any, place: str = "frame") -> None:
        """Raises AssertionError where `got` is not what is shown; learns ids that are new."""
        if isinstance(shown, Mapping):
            self._compare_objects(shown, got, place)
        elif isinstance(shown, list):
            assert len(shown) == len(got), place
            for i, (one, other) in enumerate(zip(shown, got, strict=True)):
                self.compare(one, other, f"{place}[{i}]")
        elif isinstance(shown, str) and (ID.fullmatch(shown) or shown in self._known):
            assert self._known.setdefault(shown, got) == got, place
        else:
            assert shown == got, place

    def _compare_objects(self, shown: Mapping[str, Any], got: Any, place: str) -> None:
        names = shown.keys() - {"…"}
        assert names <= got.keys() if "…" in shown else names == got.keys(), place
        for name in names:
            if isinstance(shown[name], Mapping) and name in MEASURED:
                assert shown[name].keys() == got[name].keys(), f"{place}.{name}"
            elif name not in MEASURED:
                self.compare(shown[name], got[name], f"{place}.{name}")


async def play(client: Client, lines: Sequence[str]) -> None:
    ids = Ids()
    for line in lines:
        way, text = line.split(" ", 1)
        if way == ">":
            await client.socket.send(ids.put_in(text))
        else:
            shown = json.loads(text)
            ids.compare(shown, await client.skip_to(shown["type"]), line)


async def test_the_session_goes_as_shown(start: Start) -> None:
    running = await start(FakeEngine(say, token_interval=0.001))
    async with running.socket() as client:
        await play(client, LINES)
    assert running.engine.live == {}


def test_every_client_frame_has_an_example() -> None:
    sent = {json.loads(line[2:])["type"] for line in LINES if line.startswith("> ")}
    assert sent == CLIENT_TYPES.keys()


@pytest.mark.parametrize(
    ("shown", "got"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "…": "…"}, {"b": 2}),
        ({"a": ["m1", "m1"]}, {"a": ["x", "y"]}),
        ({"kv": {"a": 1}}, {"kv": {"b": 1}}),
        ([1], [1, 2]),
    ],
)
def test_a_difference_is_found(shown: Any, got: Any) -> None:
    with pytest.raises(AssertionError):
        Ids().compare(shown, got)
