"""Everything about the GPU in one go, under four minutes, without a network: `python -m benchmarks.gpu_check`

Correctness of every kernel against float64; decode attention and products with weights of eight bits as shares of the measured copy
bandwidth; prefill attention against torch's own on the same contiguous data; tokens per second of whole models against the floor that their bytes set. Prints a
table with the goals, last line JSON. Without a GPU it says so and ends with 0; `--dry-run` then runs all of it at tiny
sizes in Triton's interpreter, where times mean nothing. The exit code is 1 when a result is wrong or a part failed.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator

from benchmarks.gpu_rows import Row


def parts(dry_run: bool) -> dict[str, Callable[[], Iterator[Row]]]:
    """The parts in order of worth: what is learned is printed at once, so an end by time loses little."""
    if dry_run:
        os.environ["TRITON_INTERPRET"] = (
            "1"  # read when Triton is imported, which the next lines do
        )
    from benchmarks.gpu_correctness import check_kernels
    from benchmarks.gpu_draws import draw_times
    from benchmarks.gpu_models import decode_whole_models
    from benchmarks.gpu_speed import Machine, decode_shares, prefill_ratio, product_shares

    machine = Machine.measure(dry_run)
    return {
        "correctness": lambda: check_kernels(machine.device),
        "decode": lambda: decode_shares(machine),
        "prefill": lambda: prefill_ratio(machine),
        "products": lambda: product_shares(machine),
        "draws": lambda: draw_times(machine),
        "models": lambda: decode_whole_models(machine),
    }


def run(dry_run: bool) -> tuple[dict[str, list[dict[str, object]]], list[str]]:
    """Rows of every part, and what went wrong; a part that raises does not stop the others."""
    results: dict[str, list[dict[str, object]]] = {}
    failures: list[str] = []
    for name, part in parts(dry_run).items():
        results[name] = []
        try:
            for row in part():
                print(row.line(), flush=True)
                results[name].append(row.as_json())
                if row.wrong:
                    failures.append(f"{name}: {row.name}")
        except Exception:
            traceback.print_exc(file=sys.stdout)
            failures.append(f"{name}: failed")
    return results, failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Check and measure the kernels on a GPU.")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, interpreted, no GPU")
    dry_run = parser.parse_args().dry_run
    import torch

    if not dry_run and not torch.cuda.is_available():
        print("There is no GPU here; --dry-run goes through the motions without one.")
        print(json.dumps({"gpu": None}))
        return 0
    from benchmarks.machine import describe

    print(describe())
    results, failures = run(dry_run)
    print(*failures, sep="\n")
    name = None if dry_run else torch.cuda.get_device_name()
    print(json.dumps({"gpu": name, "torch": torch.__version__, "failed": failures, **results}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
