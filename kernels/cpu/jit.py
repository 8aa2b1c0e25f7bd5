"""Compiles the routines of this package with numba, once per machine, and calls them by address.

A routine takes the address of one ctypes structure. It is compiled when its module is imported, or loaded from the
cache: `NUMBA_CACHE_DIR` if set, else the user's cache folder, in a folder named after the sources of this package,
because numba does not notice changes in inlined functions of other files.
"""

import ctypes
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numba
import platformdirs
from numba import types
from numba.core import config as numba_config
from numba.core.ccallback import CFunc

logger = logging.getLogger(__name__)

Routine = Callable[[int], int]


class Compiled:
    """A compiled routine: `address` for other threads, `__call__` for this one.

    A call keeps the GIL: giving it away costs up to a switch interval (5 ms) to get it back while another Python
    thread is busy, much more than a short routine. Long ones go through `kernels.cpu.threads.run`.
    """

    def __init__(self, cfunc: CFunc) -> None:
        self._cfunc = cfunc  # owns the machine code
        self.address: int = cfunc.address
        self.call = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_size_t)(self.address)
        self.call_without_gil = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_size_t)(self.address)


def routine(function: Routine) -> Compiled:
    """Decorator: compile a function (address of its arguments) -> number."""
    try:
        return Compiled(_compile(function, cache=True))
    except RuntimeError as error:  # numba finds no folder that it may write to
        logger.warning("%s is compiled anew at every start: %s", function.__name__, error)
        return Compiled(_compile(function, cache=False))


def _compile(function: Routine, *, cache: bool) -> CFunc:
    previous = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(_cache_directory())
    try:
        signature = types.int64(types.int64)
        return numba.cfunc(signature, cache=cache, error_model="numpy")(function)
    finally:
        numba_config.CACHE_DIR = previous


def _cache_directory() -> Path:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else platformdirs.user_cache_path("pageturn") / "kernels"
    return base / _digest_of_sources()


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if not _cache_directory().exists():
    logger.info("compiling the CPU kernels: about 15 seconds, once")
