"""The cache of the fused step never holds what other sources made."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu.fused import compiled

PROGRAM = """
import sys
import kernels.cpu.fused.compiled
print(*(module.__file__ for name, module in sys.modules.items() if name.startswith("kernels.cpu")))
"""


def test_whatever_the_step_imports_counts_as_its_source() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    imported = {Path(file) for file in done.stdout.split()}
    assert len(imported) > 20
    assert imported <= set(compiled.sources())


def test_what_another_checkout_has_compiled_is_not_this_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not compiled.is_compiled()
    folder = compiled.cache_folder()
    index = f"run-1.py{sys.version_info.major}{sys.version_info.minor}.nbi"
    (folder / "elsewhere").mkdir(parents=True)
    (folder / "elsewhere" / index).touch()
    assert not compiled.is_compiled()
    (own,) = (path for path in folder.iterdir() if path.name != "elsewhere")
    (own / index).touch()
    assert compiled.is_compiled()


@pytest.mark.parametrize("changed", ["fused/step.py", "memory.py"])
def test_a_changed_source_has_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "fused" / "compiled.py"))
    for name in ("fused/step.py", "memory.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a = 1\n")
    before = compiled.cache_folder()
    assert compiled.cache_folder() == before
    (tmp_path / changed).write_text("a = 2\n")
    assert compiled.cache_folder() != before
    assert compiled.cache_folder().parent == tmp_path / "cache"
