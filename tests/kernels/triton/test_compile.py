"""The kernels compile for real GPUs and show what the design asks for: in a process of its own, because here Triton interprets."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run_module(*arguments: str, cache: Path, program: str | None = None) -> str:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    environment.pop("TRITON_INTERPRET", None)
    command = ["-m", "benchmarks.triton_aot", *arguments] if program is None else ["-c", program]
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        capture_output=True,
        text=True,
        timeout=800,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(900)
def test_one_models_shapes_compile_without_spills(tmp_path: Path) -> None:
    report = json.loads(run_module("--quick", "--jobs", "1", cache=tmp_path).splitlines()[-1])
    assert report["failed"] == []
    variants = re.compile("(int8|fp8) (KV|weights)$|, window, soft cap$")
    binaries = [b for b in report["binaries"] if not variants.search(b["label"])]
    seen = {(binary["kernel"], binary["target"]): binary for binary in binaries}
    kernels = {kernel for kernel, _ in seen}
    assert kernels == {
        *("decode_attention", "merge_splits", "prefill_attention"),
        *("rotate_and_store", "copy_blocks", "rms_norm", "silu_and_mul"),
    }
    assert len(seen) == len(binaries) == 4 * len(kernels)
    # With int8 and fp8 three kernels on keys and values, one on weights; with a window and a soft cap three of attention.
    assert len(report["binaries"]) - len(binaries) == 4 * (2 * 4 + 3)
    assert seen["prefill_attention", "sm_80"]["products"] == "HMMA"
    assert seen["prefill_attention", "sm_90"]["products"] == "HGMMA"
    # Two tiles of keys and of values wait while a third is worked on.
    assert seen["decode_attention", "sm_90"]["shared"] >= 4 * 16_384


def test_the_table_in_the_docs_has_a_row_for_every_case(tmp_path: Path) -> None:
    program = (
        "from benchmarks.triton_cases import all_cases\n"
        "for case in all_cases(quick=False)['sm_90']:\n"
        "    print(f'| `{case.kernel.removesuffix(\"_kernel\")}` | {case.label} |')"
    )
    expected = run_module(cache=tmp_path, program=program).splitlines()
    text = (ROOT / "docs" / "kernels.md").read_text()
    table = text.split("<!-- compiled -->")[1].split("<!-- /compiled -->")[0]
    rows = re.findall(r"^\| `\w+` \| [^|]+ \|", table, re.MULTILINE)
    assert rows == expected, "run python -m benchmarks.triton_aot --write"
