"""Compiled once: a second process loads everything from the cache, and a changed source does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.ccallback import CFunc

from kernels.cpu import jit

PROGRAM = """
import torch
from numba.core import event
from kernels.ops import select_backend
with event.install_recorder("numba:compile") as recorder:
    backend = select_backend("cpu", torch.device("cpu"))
    x = backend.rms_norm(torch.ones(1, 8), torch.ones(8), 1e-5)
print(len(recorder.buffer), x.sum().item())
"""


def test_a_second_start_compiles_nothing() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert outputs[1][0] == "0"
    assert float(outputs[1][1]) == pytest.approx(8.0, rel=1e-4)


def test_cache_lies_in_a_folder_named_after_the_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert jit._cache_directory() == tmp_path / jit._digest_of_sources()
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert "pageturn" in jit._cache_directory().parts
    assert os.environ.get("NUMBA_CACHE_DIR") is None


def test_digest_follows_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jit.py").write_text("a = 1\n")
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "jit.py"))
    before = jit._digest_of_sources()
    (tmp_path / "vectors.py").write_text("b = 1\n")
    assert jit._digest_of_sources() != before


def test_without_a_folder_for_the_cache_routines_still_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_uncached(function: jit.Routine, *, cache: bool) -> CFunc:
        if cache:
            raise RuntimeError("cannot cache function 'seven': no locator available")
        return original(function, cache=False)

    def seven(address):
        return address + 7

    original = jit._compile
    monkeypatch.setattr(jit, "_compile", compile_uncached)
    assert jit.routine(seven).call(1) == 8
    assert "seven is compiled anew at every start: cannot cache function" in caplog.text
