"""Host arrays to a device in one copy: packed into pinned memory, sent without waiting, and cut into views there."""

from collections.abc import Sequence

import numpy as np
import torch

ALIGNMENT = 16
"""Of every array inside a pack, in bytes: kernels load so much at once."""


def pack(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """All arrays one behind the other, as bytes [num_bytes] uint8."""
    offsets, num_bytes = _offsets(arrays)
    packed = np.empty(num_bytes, dtype=np.uint8)
    for array, offset in zip(arrays, offsets, strict=True):
        packed[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view("u1")
    return packed


def unpack(packed: torch.Tensor, like: Sequence[np.ndarray]) -> list[torch.Tensor]:
    """Views of a pack of arrays with the shapes and types of `like`."""
    return [
        packed[offset : offset + array.nbytes]
        .view(torch.from_numpy(array[:0]).dtype)
        .view(array.shape)
        for array, offset in zip(like, _offsets(like)[0], strict=True)
    ]


def pin(packed: np.ndarray) -> torch.Tensor:
    """The bytes in pinned memory. Torch reuses it, but not before the copies from it have ended."""
    return torch.from_numpy(packed).pin_memory()


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """The arrays as tensors on the device; work queued there later sees them, the host does not wait."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    return unpack(pin(pack(arrays)).to(device, non_blocking=True), arrays)


def _offsets(arrays: Sequence[np.ndarray]) -> tuple[list[int], int]:
    """Where each array begins, and how many bytes all take."""
    sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]
    ends = np.cumsum([0, *sizes]).tolist()
    return ends[:-1], ends[-1]
