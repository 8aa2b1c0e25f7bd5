"""Runs a compiled routine on the threads that torch uses itself, and lends it memory.

The routine is called once per thread with the same arguments and claims its work by atomic counters, so that it
also works alone. torch's OpenMP team is called directly (GOMP_parallel, which every OpenMP runtime offers that speaks
GNU's interface): a second pool would fight with it for the same cores, since its threads spin between two operations of
torch. Each calling thread has a team of its own, so any number of Python threads may call.
"""

import ctypes
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from kernels.cpu.jit import Compiled

PARALLEL_WORK = 1_000_000
"""Work, in numbers touched (a few tenths of a nanosecond each), from which a team is used: on a busy machine its start and end can
cost a time slice, and shorter calls are better off alone."""

_ALIGNMENT = 64


def _find_parallel() -> Callable[[int, int, int, int], None] | None:
    suffix = {"linux": ".so", "darwin": ".dylib"}.get(sys.platform)
    if suffix is None:
        return None
    library = Path(torch.__file__).parent / "lib" / f"libtorch_cpu{suffix}"
    try:
        parallel = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


_parallel = _find_parallel()


def num_threads() -> int:
    """Threads that `run` may use."""
    return torch.get_num_threads() if _parallel is not None else 1


def call(compiled: Compiled, arguments: ctypes.Structure) -> int:
    """Call a short routine here."""
    return compiled.call(ctypes.addressof(arguments))


def run(compiled: Compiled, arguments: ctypes.Structure, work: int) -> None:
    """Call a routine here, or on all threads when there is enough work."""
    address = ctypes.addressof(arguments)
    if work < PARALLEL_WORK:
        compiled.call(address)
    elif _parallel is None or (threads := torch.get_num_threads()) == 1:
        compiled.call_without_gil(address)
    else:
        _parallel(compiled.address, address, threads, 0)


class Scratch(threading.local):
    """Memory that the calling thread may use until it asks again; it only ever grows."""

    def __init__(self) -> None:
        self._size, self._start = 0, 0
        self._memory = np.zeros(0, dtype=np.uint8)

    def address(self, size: int) -> int:
        """The address of `size` bytes on a cache line of their own."""
        if self._size < size:
            self._memory = np.zeros(2 * size + _ALIGNMENT, dtype=np.uint8)
            self._size = 2 * size
            self._start = -(-self._memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        return self._start
