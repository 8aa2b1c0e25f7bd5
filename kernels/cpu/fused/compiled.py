"""Compiles the step once per machine and keeps the result on disk.

numba notices a change of the file that holds a cached function, not of what that function inlines or calls. The cache
folder is therefore named after a digest of all sources of this package and of those beside it, of the compiler's versions
and of the processor: what is found there was made from exactly these. It lies under NUMBA_CACHE_DIR if set, else in the user's cache folder.
"""

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding
import numba
import platformdirs
from numba import types
from numba.core import config as numba_config

from kernels.cpu.fused import step
from kernels.cpu.fused.machine_code import load_kernels

_logger = logging.getLogger(__name__)
_loaded: dict[str, llvmlite.binding.ExecutionEngine] = {}
_INDEX = f"*.py{sys.version_info.major}{sys.version_info.minor}*.nbi"
_SIGNATURE = types.void(types.int64[::1], types.int64)


@cache
def compiled_step(instruction_set: str) -> Callable[..., None]:
    """`step.run` with the kernels of a set, compiled; takes about half a minute on a machine's first start and is logged.

    Raises RuntimeError where the process has loaded another set: kernels are known by name.
    """
    started = time.perf_counter()
    if not is_compiled():
        _logger.info("compiling the CPU kernels for this machine, once (about half a minute)")
    kernels(instruction_set)  # must be known by name before code that calls them is linked
    function = _compile(_usable_folder())
    _logger.info("CPU kernels ready in %.1f s (%s)", time.perf_counter() - started, cache_folder())
    return function


def kernels(instruction_set: str) -> llvmlite.binding.ExecutionEngine:
    """The machine code of the kernels, loaded for good: what is linked to it holds no reference."""
    if instruction_set not in _loaded:
        if _loaded:
            raise RuntimeError(
                f"{instruction_set} was asked for; this process runs {next(iter(_loaded))}"
            )
        _loaded[instruction_set] = load_kernels(_usable_folder(), instruction_set)
    return _loaded[instruction_set]


def is_compiled() -> bool:
    """Whether this machine has compiled the step of these very files before.

    numba keeps what it made of a file in a folder that is named after the file's own.
    """
    folder = cache_folder()
    if not os.access(folder, os.W_OK):
        return False
    with _caching_in(folder):
        kept = numba.njit(cache=True)(step.run).stats.cache_path
    return any(Path(kept).glob(_INDEX))


def cache_folder() -> Path:
    """Where the compiled step of these sources is kept."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else platformdirs.user_cache_path("pageturn") / "kernels"
    return base / f"fused-{_digest()}"


def sources() -> list[Path]:
    """Every file that the machine code is made from."""
    package = Path(__file__).parent
    return [*sorted(package.glob("*.py")), *sorted(package.parent.glob("*.py"))]


def _digest() -> str:
    features = llvmlite.binding.get_host_cpu_features().flatten()
    made_with = (numba.__version__, llvmlite.__version__, features)
    digest = hashlib.sha256(repr(made_with).encode())
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(folder: Path | None) -> Callable[..., None]:
    options = {"nogil": True, "error_model": "numpy"}
    if folder is None:
        return numba.njit(_SIGNATURE, **options)(step.run)
    with _caching_in(folder):
        return numba.njit(_SIGNATURE, cache=True, **options)(step.run)


@contextmanager
def _caching_in(folder: Path) -> Iterator[None]:
    previous = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba_config.CACHE_DIR = previous


@cache
def _usable_folder() -> Path | None:
    """The cache folder, made; None, with a warning, where it cannot be written."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    _logger.warning("%s cannot be written: the CPU kernels are compiled at every start", folder)
    return None
