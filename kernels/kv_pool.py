"""How keys and values lie in memory: one pool for all layers, cut into blocks, in floats or in eight bits with scales.

Of a block, each layer has two runs of memory, one of keys and one of values: `num_kv_heads * block_size * head_dim` numbers,
and behind them, if a number has eight bits, a scale for every token of every KV head. So what copies a block copies its scales,
and a block of one KV head is still one run of numbers.

What is rounded together (`kernels.eight_bits`) are the `head_dim` numbers of a token's head. A scale for a whole block would have to grow
while the block fills: what is stored would be rounded again, and an answer would depend on how its prompt was cut. Scales are as
wide as the least that copies past a GPU's registers take.
"""

from dataclasses import dataclass
from math import prod

import torch

from kernels.eight_bits import LARGEST

ALIGNMENT = 16
"""Of every run in bytes: kernels load so much at once."""
SCALE_BYTES = 4


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer [num_blocks, num_kv_heads, block_size, head_dim]; the three inner dimensions are contiguous.

    The scales [num_blocks, num_kv_heads, block_size] float32, contiguous inside a block, are there for numbers of eight bits only.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None


@dataclass(frozen=True)
class KVPool:
    """`memory` [num_layers, 2, num_blocks, ...] holds all blocks, `layers` are views of it."""

    memory: torch.Tensor
    layers: tuple[LayerCache, ...]

    @classmethod
    def over(cls, memory: torch.Tensor) -> "KVPool":
        """The pool in floats [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim]."""
        return cls(memory, tuple(LayerCache(*layer) for layer in memory))


@dataclass(frozen=True, kw_only=True)
class KVLayout:
    """The sizes that a pool is made of."""

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Memory of a block in all layers."""
        return 2 * self.num_layers * self._run_bytes

    @property
    def token_bytes(self) -> int:
        """Memory of a token in all layers, its share of what fills up a block included."""
        return -(-self.block_bytes // self.block_size)

    def allocate(self, num_blocks: int, device: torch.device) -> KVPool:
        """A pool of zeros. Raises RuntimeError where memory is short."""
        outer = (self.num_layers, 2, num_blocks)
        if self.dtype not in LARGEST:
            shape = (*outer, *self._run_shape)
            return KVPool.over(torch.zeros(shape, dtype=self.dtype, device=device))
        memory = torch.zeros((*outer, self._run_bytes), dtype=torch.uint8, device=device)
        return KVPool(memory, tuple(self._views(*layer) for layer in memory))

    @property
    def _run_shape(self) -> tuple[int, int, int]:
        return self.num_kv_heads, self.block_size, self.head_dim

    @property
    def _numbers_bytes(self) -> int:
        return prod(self._run_shape) * self.dtype.itemsize

    @property
    def _run_bytes(self) -> int:
        if self.dtype not in LARGEST:
            return self._numbers_bytes
        scales = self.num_kv_heads * self.block_size * SCALE_BYTES
        return _aligned(_aligned(self._numbers_bytes) + scales)

    def _views(self, keys: torch.Tensor, values: torch.Tensor) -> LayerCache:
        """Of the bytes [num_blocks, _run_bytes] of one layer."""
        return LayerCache(*map(self._numbers, (keys, values)), *map(self._scales, (keys, values)))

    def _numbers(self, runs: torch.Tensor) -> torch.Tensor:
        return runs[:, : self._numbers_bytes].view(self.dtype).unflatten(1, self._run_shape)

    def _scales(self, runs: torch.Tensor) -> torch.Tensor:
        shape = self._run_shape[:2]
        begin = _aligned(self._numbers_bytes)
        scales = runs[:, begin : begin + prod(shape) * SCALE_BYTES]
        return scales.view(torch.float32).unflatten(1, shape)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
