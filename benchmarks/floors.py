"""What this machine's memory and integer units give at best: the floors that steps of a model stand on."""

import threading
import time
from collections.abc import Callable

import numpy as np
import torch

READ_BYTES = 2**28
PRODUCT = 1024
ROUNDS = 7


def read_bandwidth(num_threads: int) -> float:
    """Bytes a second when every thread sums memory of its own, larger than any cache; the best of some rounds."""
    parts = [np.ones(READ_BYTES // 8, np.int64) for _ in range(num_threads)]

    def read_all() -> None:
        threads = [threading.Thread(target=part.sum) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return num_threads * READ_BYTES / _best_seconds(read_all)


def integer_throughput() -> float:
    """Multiplications of 8-bit numbers, each with its addition, a second: torch's product of two square matrices."""
    a = torch.ones(PRODUCT, PRODUCT, dtype=torch.int8)
    return PRODUCT**3 / _best_seconds(lambda: torch.ops.aten._int_mm(a, a))


def _best_seconds(function: Callable[[], object]) -> float:
    function()
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
