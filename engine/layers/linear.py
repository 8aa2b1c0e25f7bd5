"""Matrix products with the ways a weight can lie in memory: dense, or packed in four or eight bits.

Layers are plain callables around weights that are given at construction: nothing is trained, moved or registered.
On a CPU every product here gives a row the same bits whatever the other rows of the batch are, so that a text depends neither
on its neighbours nor on how its prompt was cut into chunks.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from engine.loader.quantized import GROUP_SIZE, EightBitWeight, Int4Weight
from kernels.ops import QuantizedLinear

Linear = Callable[[torch.Tensor], torch.Tensor]  # x [num_tokens, in] -> [num_tokens, out]

INT4_OUTPUT_MULTIPLE = 64  # the packed layout is made of whole tiles of outputs
INNER_K_TILES = 2  # only a shape parameter of the packing operation on the CPU


class DenseLinear:
    """y = x W^T + b with weight [out, in] of x's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class Int4Linear:
    """y = x W^T + b with W in four bits, for bfloat16 x on the CPU; scale and zero are rounded to bfloat16."""

    def __init__(self, weight: Int4Weight, bias: torch.Tensor | None = None) -> None:
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            weight.nibbles.int(), INNER_K_TILES
        )
        scales_and_zeros = torch.stack([weight.scales, weight.zeros], dim=-1)
        self.scales_and_zeros = scales_and_zeros.transpose(0, 1).contiguous().bfloat16()
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, self.packed, GROUP_SIZE, self.scales_and_zeros
        )
        return y if self.bias is None else y + self.bias


class Int8Linear:
    """y = x W^T with W [out, in] in eight bits and one scale per output, for bfloat16 x on the CPU."""

    def __init__(self, weight: torch.Tensor) -> None:
        scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        self.weight = (weight / scales[:, None]).round().to(torch.int8)
        self.scales = scales.bfloat16()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scales)


class EightBitLinear:
    """y = x W^T + b with W in eight bits and a scale per output, for x of any type, on a GPU."""

    def __init__(
        self, weight: EightBitWeight, multiply: QuantizedLinear, bias: torch.Tensor | None = None
    ) -> None:
        self.weight, self.multiply, self.bias = weight, multiply, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.multiply(x, self.weight.numbers, self.weight.scales, self.bias)


def int4_can_hold(out_features: int, in_features: int) -> bool:
    """Whether the packed layout has room for a weight of this shape."""
    return out_features % INT4_OUTPUT_MULTIPLE == 0 and in_features % GROUP_SIZE == 0
