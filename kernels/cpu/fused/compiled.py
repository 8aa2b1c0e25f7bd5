"""Compiles the step once per machine and keeps the result on disk.

numba notices a change of the file that holds a cached function, not of what that function inlines. The cache folder is
therefore named after a digest of all sources of this package and of the compiler's versions: what is found there was
made from exactly these sources. It lies under NUMBA_CACHE_DIR if set, else in the user's cache folder.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import llvmlite
import numba
import platformdirs
from numba import types
from numba.core import config as numba_config

from kernels.cpu.fused import step

_logger = logging.getLogger(__name__)
_SIGNATURE = types.void(types.int64[::1], types.int64)


@cache
def compiled_step() -> Callable[..., None]:
    """`step.run`, compiled; takes up to 20 seconds on a machine's first start and is logged."""
    folder = cache_folder()
    started = time.perf_counter()
    if not any(folder.rglob("*.nbi")):
        _logger.info("compiling the CPU kernels for this machine, once (about 15 seconds)")
    function = _compile(folder)
    _logger.info("CPU kernels ready in %.1f s (%s)", time.perf_counter() - started, folder)
    return function


def cache_folder() -> Path:
    """Where the compiled step of these sources is kept."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else platformdirs.user_cache_path("pageturn") / "kernels"
    return base / f"fused-{_digest()}"


def _digest() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(folder: Path) -> Callable[..., None]:
    previous = numba_config.CACHE_DIR
    can_cache = _is_writable(folder)
    if can_cache:
        numba_config.CACHE_DIR = str(folder)
    try:
        return numba.njit(_SIGNATURE, nogil=True, error_model="numpy", cache=can_cache)(step.run)
    finally:
        numba_config.CACHE_DIR = previous


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _logger.warning("%s: the CPU kernels are compiled at every start", error)
        return False
    return os.access(folder, os.W_OK)
