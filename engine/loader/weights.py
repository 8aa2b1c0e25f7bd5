"""Turns stored tensors into layers: fuses what belongs together, and chooses dense or packed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.errors import ModelLoadError
from engine.layers.embedding import DenseHead, EightBitHead, Embedding, RescoredHead
from engine.layers.linear import (
    DenseLinear,
    EightBitLinear,
    Int4Linear,
    Int8Linear,
    Linear,
    int4_can_hold,
)
from engine.loader.quantized import EightBitWeight, Int4Weight, Int8Table
from kernels.ops import QuantizedLinear

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Head = Callable[[torch.Tensor], torch.Tensor]  # hidden [num_rows, hidden_size] -> logits, float32


@dataclass(frozen=True)
class EightBits:
    """The type of numbers that weights are rounded to, and what multiplies them."""

    dtype: torch.dtype
    multiply: QuantizedLinear


class Tensors(Protocol):
    """Stored tensors by transformers' names, `dense` in some floating type.

    `unused` are those nobody asked for yet, by stored names.
    """

    unused: set[str]

    def dense(self, name: str) -> torch.Tensor: ...
    def int4(self, name: str) -> Int4Weight | None: ...
    def int8(self, name: str) -> Int8Table | None: ...
    def is_quantized(self, name: str) -> bool: ...
    def rope_factors(self) -> torch.Tensor | None: ...


class ModelWeights:
    """Layers from stored tensors, with activations in `dtype` on `device`.

    With `packed`, what the file stores in few bits stays so (on the CPU, with bfloat16 activations). With `eight_bits` all
    matrices are rounded to these. `num_parameters` and `num_packed` count what was read and what is not floats.
    """

    def __init__(
        self,
        tensors: Tensors,
        *,
        dtype: torch.dtype,
        device: torch.device,
        packed: bool = False,
        eight_bits: EightBits | None = None,
    ) -> None:
        self.dtype, self.device = dtype, device
        self.num_parameters = self.num_packed = 0
        self._tensors, self._packed, self._eight_bits = tensors, packed, eight_bits

    def vector(self, name: str) -> torch.Tensor:
        """A norm's weight [size] float32."""
        return self._read(f"{name}.weight").to(self.device, torch.float32)

    def linear(self, *names: str, bias: bool) -> Linear:
        """One product whose outputs are those of all `names`, in order."""
        biases = [self._read(f"{name}.bias") for name in names] if bias else None
        fused = None if biases is None else torch.cat(biases).to(self.device, self.dtype)
        packed = self._int4(names)
        if packed is not None:
            return Int4Linear(packed, fused)
        weights = [self._read(f"{name}.weight") for name in names]
        if self._eight_bits is not None:
            rounded = self._round(torch.cat(weights), self._eight_bits)
            return EightBitLinear(rounded, self._eight_bits.multiply, fused)
        dense = torch.cat([weight.to(self.dtype) for weight in weights])
        return DenseLinear(dense.to(self.device), fused)

    def embedding_and_head(self, tied: bool) -> tuple[Embedding, Head]:
        """The token embedding and the product that gives logits; they share the weight when `tied`."""
        embedding = self._table(EMBEDDING)
        if tied:
            return embedding, self._head(EMBEDDING, embedding)
        return embedding, self._head(HEAD, self._table(HEAD))

    def rope_factors(self) -> torch.Tensor | None:
        """Divisors of the rotary frequencies [head_dim / 2], where the file has some."""
        return self._tensors.rope_factors()

    def check_all_used(self) -> None:
        """Raises ModelLoadError when tensors are left over: the model is not what its configuration says."""
        if self._tensors.unused:
            names = sorted(self._tensors.unused)
            raise ModelLoadError(
                f"{len(names)} tensors do not belong to this architecture, among them {names[0]}"
            )

    def _read(self, name: str) -> torch.Tensor:
        tensor = self._tensors.dense(name)
        self.num_parameters += tensor.numel()
        return tensor

    def _table(self, name: str) -> Embedding:
        if self._eight_bits is not None:
            return Embedding(self._round(self._read(name), self._eight_bits))
        packed = self._tensors.int8(name) if self._packed else None
        if packed is None:
            return Embedding(self._read(name).to(self.device, self.dtype))
        self.num_parameters += packed.values.numel()
        return Embedding(packed)

    def _head(self, name: str, table: Embedding) -> Head:
        if self._packed and self._tensors.is_quantized(name):
            return RescoredHead(Int8Linear(self._tensors.dense(name)), table)
        if self._eight_bits is not None and isinstance(table.weight, EightBitWeight):
            linear = EightBitLinear(table.weight, self._eight_bits.multiply)
            return EightBitHead(linear, self.dtype)
        assert isinstance(table.weight, torch.Tensor), "only quantised tables are packed"
        return DenseHead(table.weight)

    def _round(self, weight: torch.Tensor, to: EightBits) -> EightBitWeight:
        self.num_packed += weight.numel()
        return EightBitWeight.of(weight, to.dtype, self.device)

    def _int4(self, names: tuple[str, ...]) -> Int4Weight | None:
        if not self._packed:
            return None
        parts = [self._tensors.int4(f"{name}.weight") for name in names]
        present = [part for part in parts if part is not None]
        if len(present) < len(parts):
            return None
        weight = Int4Weight.concatenate(present)
        if not int4_can_hold(*weight.nibbles.shape):
            return None
        self.num_parameters += weight.nibbles.numel()
        self.num_packed += weight.nibbles.numel()
        return weight
