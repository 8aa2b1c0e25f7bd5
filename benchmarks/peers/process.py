"""Another engine in a process of its own that takes turns with ours: between its turns it stands still and takes no time."""

import json
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

MARK = "figure:"
"""Begins the lines that are for us; the engines print lines of their own."""


class PeerError(Exception):
    """A peer ended: it is not installed, or it failed."""


class Peer:
    """`run_NAME.py` with the Python where the peer is installed, from the first round on; `cases` are what it may be asked for."""

    def __init__(
        self, name: str, python: Path, model: Path, num_threads: int, cases: Mapping[str, object]
    ) -> None:
        script = Path(__file__).parent / f"run_{name}.py"
        self._command = [*map(str, (python, script, model, num_threads)), json.dumps(cases)]
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process: subprocess.Popen[str] | None = None

    def rate(self, case: str, salt: int) -> float:
        """Tokens a second of one round of a case; blocks until it is done or `close` is called. Raises PeerError."""
        if self._process is None:
            self._process = self._start()
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None, "a pipe"
        assert answers is not None, "a pipe"
        with suppress(BrokenPipeError, ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)
            questions.write(f"{json.dumps([case, salt])}\n")
            questions.flush()
            for line in answers:
                if line.startswith(MARK):
                    os.killpg(self._process.pid, signal.SIGSTOP)
                    return _figure(line.removeprefix(MARK).strip())
        raise PeerError(self._why(self._process.wait()))

    def close(self) -> None:
        """End it, with all that it has started."""
        self._errors.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()

    def _start(self) -> "subprocess.Popen[str]":
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise PeerError(str(error)) from error

    def _why(self, code: int) -> str:
        self._errors.seek(0)
        return (self._errors.read().strip().splitlines() or [f"it ended with {code}"])[-1]


def _figure(text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(figure := float(text)):
            return figure
    raise PeerError(f"{text!r} is no figure")
