"""Puts the linear layers of a model into packed memory, in the column orders that the step expects."""

import threading
from collections.abc import Sequence

import numpy as np

from kernels.cpu.fused.linear import BLOCK_COLUMNS
from kernels.cpu.fused.memory_pool import aligned_zeros
from kernels.cpu.fused.packing import (
    Groups,
    Groups4,
    Groups8,
    from_float,
    join,
    pack,
    packed_size,
    pad_columns,
    take_rows,
    to_float,
)

HALF_BLOCK = 16
_SLAB_BYTES = 1 << 26


class PackedMemory:
    """Packed blocks in large slabs of memory, which huge pages can back. May be filled by several threads."""

    def __init__(self) -> None:
        self._slabs: list[np.ndarray] = []
        self._free = np.empty(0, np.uint8)
        self._lock = threading.Lock()
        self.num_bytes = 0

    def add(self, parts: Sequence[Groups]) -> np.ndarray:
        """Packs parts, each of whole blocks, one after another; returns their table entries [blocks] int64."""
        return np.concatenate([pack(part, self._take(packed_size(part))) for part in parts])

    def _take(self, num_bytes: int) -> np.ndarray:
        with self._lock:
            if len(self._free) < num_bytes:
                self._free = aligned_zeros(max(_SLAB_BYTES, num_bytes))
                self._slabs.append(self._free)
            taken, self._free = self._free[:num_bytes], self._free[num_bytes:]
            self.num_bytes += num_bytes
            return taken


def plain_columns(groups: Groups) -> list[Groups]:
    """A layer as it is, with zero columns up to a whole block."""
    return [pad_columns(groups, BLOCK_COLUMNS)]


def qkv_columns(q: Groups, k: Groups, v: Groups, unit_columns: int) -> list[Groups]:
    """Queries, keys, values, each up to a whole unit of heads."""
    return [pad_columns(part, unit_columns) for part in (q, k, v)]


def qkv_bias(biases: Sequence[np.ndarray], unit_columns: int) -> np.ndarray:
    """Biases float32 in the same order."""
    padded = [np.pad(bias, (0, -len(bias) % unit_columns)) for bias in biases]
    return np.concatenate(padded).astype(np.float32)


def gate_up_columns(gate: Groups, up: Groups) -> list[Groups]:
    """16 gates, their 16 ups, and so on; both are brought to 8 bits when the file stores them differently."""
    pair = (gate, up)
    if type(gate) is not type(up):
        pair = tuple(as_groups8(part) for part in pair)
    size = len(gate.scale)
    order = np.arange(2 * size).reshape(2, -1, HALF_BLOCK).transpose(1, 0, 2).reshape(-1)
    return [take_rows(join(pair), order)]


def as_groups8(groups: Groups) -> Groups8:
    """The weights in 8 bits, rounded when they were not."""
    return from_float(to_float(groups)) if isinstance(groups, Groups4) else groups
