"""Compile every Triton kernel for real GPUs, without one, and look inside: `python -m benchmarks.triton_aot`

Each kernel is compiled with the constants, warps and stages that a launch would choose, for an A100 (sm_80), an H200 (sm_90), a
B200 (sm_100) and an MI300X (gfx942). What the design asks for is checked in the binaries: no spills, shared memory within
the chip's, tensor-core instructions in products, 16-byte loads of keys and values. The exit code is 1 if something fails.
`--write` puts the table into docs/kernels.md; `--quick` compiles one model's shapes only. The last line is JSON.
"""

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from benchmarks.triton_binaries import TARGETS, Case, Finding, inspect
from benchmarks.triton_cases import all_cases

DOC = Path(__file__).resolve().parents[1] / "docs" / "kernels.md"
BEGIN, END = "<!-- compiled -->\n", "<!-- /compiled -->"


def faults(finding: Finding, case: Case) -> list[str]:
    """What the design asks for and the binary does not show."""
    limit = TARGETS[finding.target].chip.shared_bytes
    wrong = []
    if finding.spilled:
        wrong.append(f"{finding.spilled} bytes spilled")
    if finding.shared > limit:
        wrong.append(f"{finding.shared} bytes of shared memory, more than {limit}")
    if case.has_products and not finding.products:
        wrong.append("no tensor-core instruction")
    if case.has_wide_loads and not finding.wide_loads:
        wrong.append("no 16-byte load")
    return wrong


def table(findings: Sequence[Finding]) -> str:
    """Markdown: one row for a configuration, one column for a target."""
    rows: dict[tuple[str, str], dict[str, Finding]] = {}
    for finding in findings:
        rows.setdefault((finding.kernel, finding.label), {})[finding.target] = finding
    lines = ["| kernel | for | " + " | ".join(TARGETS) + " |", "|---|---|" + "---|" * len(TARGETS)]
    for (kernel, label), by_target in rows.items():
        cells = " | ".join(_cell(by_target[target]) for target in TARGETS)
        lines.append(f"| `{kernel}` | {label} | {cells} |")
    return "\n".join(lines) + "\n"


def _cell(finding: Finding) -> str:
    parts = [str(finding.registers), f"{finding.shared / 1024:.0f} KiB", finding.products]
    spilled = f"{finding.spilled} B spilled" if finding.spilled else ""
    return ", ".join(part for part in (*parts, spilled) if part)


def write_table(text: str) -> None:
    """Put the table between its marks in docs/kernels.md."""
    before, rest = DOC.read_text().split(BEGIN)
    DOC.write_text(before + BEGIN + text + END + rest.split(END)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile all Triton kernels and inspect them.")
    parser.add_argument("--quick", action="store_true", help="the shapes of one model only")
    parser.add_argument("--write", action="store_true", help="write the table to docs/kernels.md")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    cases = all_cases(quick=options.quick)
    work = [(case, target) for target in TARGETS for case in cases[target]]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        findings = list(pool.map(inspect, *zip(*work, strict=True)))
    failed = [
        f"{finding.kernel} ({finding.label}) for {finding.target}: {', '.join(wrong)}"
        for finding, (case, _) in zip(findings, work, strict=True)
        if (wrong := faults(finding, case))
    ]
    print(table(findings), *failed, sep="\n")
    if options.write:
        write_table(table(findings))
    print(json.dumps({"failed": failed, "binaries": [asdict(finding) for finding in findings]}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
