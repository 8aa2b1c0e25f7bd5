"""A live server around a fake engine, and clients in processes of their own.

A client's imports, warnings and threads stay out of the tests' process. The clients come from requirements-clients.txt; a
test whose client is not installed is skipped.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Running, running, start
from tests.fake_engine import FakeEngine

__all__ = ["running", "start"]
SCRIPTS = Path(__file__).parent
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


def saying(*texts: str, interval: float = 0.0) -> FakeEngine:
    """Candidate i says texts[i], a letter a token."""
    return FakeEngine(lambda prompt, index: list(texts[index]), token_interval=interval)


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
