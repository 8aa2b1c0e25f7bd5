"""Memory that compiled code reads by address."""

import numpy as np

ALIGNMENT = 64


def aligned_zeros(num_bytes: int) -> np.ndarray:
    """Zeroed bytes that start at a cache line; large ones come from huge pages where the system has them."""
    memory = np.zeros(num_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + num_bytes]
