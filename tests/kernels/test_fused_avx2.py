"""The fused step built for AVX2: the same tests in a process of its own, for a process holds one set of kernels."""

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import pytest

from kernels.cpu.fused.compiled import kernels
from kernels.cpu.fused.features import (
    best_instruction_set,
    cpu_features,
    missing_features,
)
from kernels.cpu.fused.machine_code import build_module, target_machine
from tests.kernels.fused_reference import INSTRUCTION_SET

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parent.parent
TIMEOUT_SECONDS = 400
_missing = missing_features("avx2", cpu_features())
pytestmark = [
    pytest.mark.skipif(bool(_missing), reason=f"this CPU lacks {', '.join(_missing)}"),
    pytest.mark.skipif(INSTRUCTION_SET == "avx2", reason="these tests run with AVX2 themselves"),
]


@pytest.mark.parametrize(
    "name", ["test_fused_kernels.py", "test_fused_bounds.py", "test_fused_step.py"]
)
def test_all_of_it_holds_with_avx2(name: str) -> None:
    environment = os.environ | {"TESTED_INSTRUCTION_SET": "avx2"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / name)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        timeout=TIMEOUT_SECONDS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout


def test_no_code_for_avx2_uses_wider_registers() -> None:
    machine = target_machine("avx2")
    code = machine.emit_assembly(llvmlite.binding.parse_assembly(str(build_module("avx2"))))
    assert "ymm" in code
    assert "zmm" not in code
    assert "%k1" not in code


def test_a_process_holds_one_set_of_kernels() -> None:
    kernels(INSTRUCTION_SET)
    with pytest.raises(RuntimeError, match=r"avx2 was asked for; this process runs avx512"):
        kernels("avx2")


@pytest.mark.parametrize(
    ("features", "best"),
    [
        ({"avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "f16c", "avx2", "fma"}, "avx512"),
        ({"avx512f", "avx512vnni", "avx2", "fma", "f16c"}, "avx2"),
        ({"sse4.2"}, "avx2"),
    ],
)  # fmt: skip
def test_the_fastest_set_without_gaps_is_taken(features: set[str], best: str) -> None:
    assert best_instruction_set(features) == best
