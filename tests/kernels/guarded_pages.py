"""Memory between pages that cannot be touched: one byte too far, read or written, is a crash."""

import ctypes
import mmap

import numpy as np

_LIBC = ctypes.CDLL(None)
_PROT_NONE = 0
_CACHE_LINE = 64


class GuardedPages:
    """Arrays that end where the memory ends; they live as long as this object."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def copy(self, values: np.ndarray) -> np.ndarray:
        """The same numbers in guarded memory."""
        guarded = self._take(values.nbytes).view(values.dtype).reshape(values.shape)
        guarded[:] = values
        return guarded

    def aligned_zeros(self, num_bytes: int) -> np.ndarray:
        """Zeroed bytes from the start of a cache line on; what fills the last line is in front of them."""
        return self._take(-(-num_bytes // _CACHE_LINE) * _CACHE_LINE)[:num_bytes]

    def _take(self, num_bytes: int) -> np.ndarray:
        page = mmap.PAGESIZE
        size = -(-num_bytes // page) * page
        memory = mmap.mmap(-1, size + 2 * page)
        self._maps.append(memory)
        pages = np.frombuffer(memory, np.uint8)
        for guard in (0, page + size):
            _LIBC.mprotect(ctypes.c_void_p(pages.ctypes.data + guard), page, _PROT_NONE)
        return pages[page + size - num_bytes : page + size]
