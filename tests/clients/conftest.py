"""A live server around a fake engine, and clients in processes of their own.

A client's imports, warnings and threads stay out of the tests' process. The clients come from requirements-clients.txt; a
test whose client is not installed is skipped.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from engine.sampling_params import SamplingParams
from tests.api.conftest import Running, running, start
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream

__all__ = ["running", "start"]
SCRIPTS = Path(__file__).parent
LEAVING = str(SCRIPTS / "leaving_calls.py")
TIMEOUT_S = 150
Run = Callable[..., Awaitable[str]]


def needs(package: str) -> list[pytest.MarkDecorator]:
    """Marks for a file whose tests use `package`."""
    reason = f"{package} is not installed; make clients installs it"
    return [
        pytest.mark.clients,
        pytest.mark.skipif(find_spec(package) is None, reason=reason),
        pytest.mark.timeout(TIMEOUT_S + 30),
    ]


CITY = {"name": "Oslo", "country": "Norway"}


class NotingSchemas(FakeEngine):
    """Remembers the schemas that were asked for."""

    def __init__(self, script: Callable[[Sequence[int], int], list[str]]) -> None:
        super().__init__(script)
        self.schemas: list[Any] = []

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> FakeStream:
        if params.grammar is not None:
            self.schemas.append(json.loads(params.grammar.text))
        return super().submit(prompt_token_ids, params)


def saying(*texts: str) -> NotingSchemas:
    """Candidate i says texts[i], a letter a token; asked to name one, it names a city in JSON."""

    def script(prompt: Sequence[int], index: int) -> list[str]:
        return list(json.dumps(CITY) if b"Name one" in bytes(prompt) else texts[index])

    return NotingSchemas(script)


def endless() -> FakeEngine:
    """Says a letter every twentieth of a second, for longer than any test."""
    return FakeEngine(lambda prompt, index: ["a"] * 10_000, token_interval=0.05)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`await run(program, arguments)` gives what it printed; it sees no proxy and a home of its own."""

    async def run_it(*command: str, **environment: str) -> str:
        inherited = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
            cwd=tmp_path,
            env=inherited | {"HOME": str(tmp_path)} | environment,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert process.returncode == 0, errors.decode()[-3000:]
        return output.decode()

    return run_it


@pytest.fixture
def script(run: Run) -> Callable[..., Awaitable[Any]]:
    """`await script(name, server)` runs a file of this folder and gives the JSON that it printed last."""

    async def run_script(name: str, server: Running, **environment: str) -> Any:
        output = await run(sys.executable, str(SCRIPTS / name), server.url, **environment)
        return json.loads(output.splitlines()[-1])

    return run_script
