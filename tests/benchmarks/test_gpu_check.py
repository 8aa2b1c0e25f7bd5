"""The GPU check goes through all its parts without a GPU, and says so when it cannot measure."""

import json
import os
import subprocess
import sys

import pytest
import torch


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.gpu_check", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=environment, check=False
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = gpu_check()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("There is no GPU here")
    assert json.loads(done.stdout.splitlines()[-1]) == {"gpu": None}


@pytest.mark.timeout(600)
def test_a_dry_run_goes_through_every_part() -> None:
    done = gpu_check("--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["failed"] == []
    names = [row["name"].split(",")[0] for row in report["correctness"]]
    assert names == [
        *("attention", "rotate_and_store"),
        *["attention", "rotate_and_store", *["quantized_linear"] * 3] * 2,
        *("fused_add_rms_norm", "silu_and_mul"),
        *["attention"] * 4,
        "copy_blocks",
    ]
    parts = ("decode", "prefill", "products", "draws", "models")
    assert [len(report[part]) for part in parts] == [4, 6, 2, 4, 4]
