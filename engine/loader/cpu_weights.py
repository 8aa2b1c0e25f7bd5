"""Weights for the fused CPU step: kept as the file has them where its 4-bit and 8-bit groups can, else rounded.

GGUF's Q4_0, Q4_1, Q5_0 and Q8_0 are exact, Q4_K but for the last bits of its scales. Other types and floating-point models
are rounded to 8 bits in groups of 32 inputs. `--quantization int8` rounds those of 4 bits too; `int4` rounds the matrices of
the layers to 4 bits, while embedding and head, where an error goes into the answer at once, have 8. `rounding_error` says by
how much, as the root mean square of the difference over that of the weights.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGMLQuantizationType as QuantizationType

from engine.errors import ModelLoadError
from engine.layers.rotary_embedding import build_cos_sin
from engine.loader.gguf import GGUFTensors
from engine.loader.weights import EMBEDDING, HEAD, Tensors
from engine.models.config import ModelConfig
from kernels.cpu.fused.model import FusedLayer, FusedShape, FusedWeights
from kernels.cpu.fused.packing import (
    Groups,
    Groups4,
    from_float,
    from_float_4,
    from_q4_0,
    from_q4_1,
    from_q4_k,
    from_q5_0,
    from_q8_0,
    take_rows,
    to_float,
)
from kernels.cpu.fused.quantize import GROUP
from kernels.cpu.fused.weights import (
    PackedMemory,
    gate_up_columns,
    plain_columns,
    qkv_bias,
    qkv_columns,
)

GroupTypes = Mapping[QuantizationType, Callable[[np.ndarray], Groups]]
EIGHT_BIT_TYPES: GroupTypes = {QuantizationType.Q5_0: from_q5_0, QuantizationType.Q8_0: from_q8_0}
FOUR_BIT_TYPES: GroupTypes = {
    QuantizationType.Q4_0: from_q4_0,
    QuantizationType.Q4_1: from_q4_1,
    QuantizationType.Q4_K: from_q4_k,
}
INEXACT_TYPES = (QuantizationType.Q4_K,)
SAMPLE_ROWS = 64


@dataclass(frozen=True)
class Rounding:
    """What becomes of a matrix: kept when it is stored in one of these types, else rounded."""

    kept: GroupTypes
    to_groups: Callable[[np.ndarray], Groups]


AS_STORED = Rounding(FOUR_BIT_TYPES | EIGHT_BIT_TYPES, from_float)
TO_8_BITS, TO_4_BITS = Rounding(EIGHT_BIT_TYPES, from_float), Rounding(FOUR_BIT_TYPES, from_float_4)
ROUNDINGS: Mapping[str, tuple[Rounding, Rounding]] = {
    "auto": (AS_STORED, AS_STORED),
    "int8": (TO_8_BITS, TO_8_BITS),
    "int4": (TO_4_BITS, AS_STORED),
}
"""For each `--quantization` of this runner: matrices of the layers; embedding and head."""
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class LoadedWeights:
    """Packed weights, how many parameters they are, in how many bytes, and how exact."""

    weights: FusedWeights
    num_parameters: int
    num_bytes: int
    num_rounded: Mapping[int, int]
    """Parameters by the bits that they were rounded to."""
    rounding_error: float

    @property
    def description(self) -> str:
        """One line for people."""
        if not self.rounding_error:
            return "as in the file"
        error = f"relative error {self.rounding_error:.2%}"
        shares = (
            f"{count / self.num_parameters:.0%} rounded to {bits} bits"
            for bits, count in sorted(self.num_rounded.items())
        )
        return ", ".join((*shares, error)) if self.num_rounded else f"as in the file, {error}"


def fused_shape(config: ModelConfig) -> FusedShape:
    """The sizes that the fused step is told."""
    return FusedShape(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        epsilon=config.rms_norm_eps,
        softmax_scale=config.head_dim**-0.5,
    )


def load_fused_weights(
    tensors: Tensors,
    config: ModelConfig,
    *,
    quantization: str,
    num_positions: int,
    num_threads: int,
    progress: Progress,
) -> LoadedWeights:
    """Reads and packs all layers, several at a time; `quantization` is a key of ROUNDINGS.

    Raises ModelLoadError for a tensor that is missing or unusable.
    """
    reader = _Reader(tensors, config, *ROUNDINGS[quantization])
    layers: list[FusedLayer] = []
    with ThreadPoolExecutor(num_threads, "pack") as pool:
        tables = pool.submit(reader.embedding_and_head)
        for layer in pool.map(reader.layer, range(config.num_layers)):
            layers.append(layer)
            progress("loading weights", len(layers) / config.num_layers)
        embedding, head = tables.result()
    half = config.head_dim // 2
    cos_sin = build_cos_sin(
        config.rope, config.head_dim, num_positions, tensors.rope_factors()
    ).numpy()
    weights = FusedWeights(
        layers=layers,
        final_norm=reader.vector("model.norm.weight"),
        embedding=embedding,
        head=head,
        cosines=np.ascontiguousarray(cos_sin[:, :half]),
        sines=np.ascontiguousarray(cos_sin[:, half:]),
        memory=reader.memory,
    )
    return reader.finish(weights)


class _Reader:
    """Reads one model's tensors; its totals are sums over all of them."""

    def __init__(
        self, tensors: Tensors, config: ModelConfig, layers: Rounding, tables: Rounding
    ) -> None:
        self._tensors, self._config = tensors, config
        self._layers, self._tables = layers, tables
        self._shape = fused_shape(config)
        self.memory = PackedMemory()
        self._num_parameters: list[int] = []
        self._rounded: list[tuple[int, int, float, float]] = []
        """Of each inexact matrix: bits (0: kept but for its scales), size, sums of squares of error and weights."""

    def vector(self, name: str) -> np.ndarray:
        """A norm or bias, float32."""
        values = np.ascontiguousarray(self._tensors.dense(name).float().numpy())
        self._num_parameters.append(values.size)
        return values

    def layer(self, index: int) -> FusedLayer:
        """All of one layer."""
        prefix, config = f"model.layers.{index}", self._config
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        q, k, v = (self._matrix(f"{attention}.{name}_proj.weight", self._layers) for name in "qkv")
        unit = self._shape.heads_per_unit * config.head_dim
        gate, up = (
            self._matrix(f"{mlp}.{name}_proj.weight", self._layers) for name in ("gate", "up")
        )
        return FusedLayer(
            input_norm=self.vector(f"{prefix}.input_layernorm.weight"),
            qkv=self.memory.add(qkv_columns(q, k, v, unit)),
            qkv_bias=self._qkv_bias(attention, unit) if config.qkv_bias else None,
            q_norm=self._head_norm(f"{attention}.q_norm.weight"),
            k_norm=self._head_norm(f"{attention}.k_norm.weight"),
            output=self._plain(f"{attention}.o_proj.weight", self._layers),
            post_norm=self.vector(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=self.memory.add(gate_up_columns(gate, up)),
            down=self._plain(f"{mlp}.down_proj.weight", self._layers),
        )

    def embedding_and_head(self) -> tuple[np.ndarray, np.ndarray]:
        """Block tables over token ids; one and the same when the model ties them."""
        embedding = self._plain(EMBEDDING, self._tables)
        is_tied = self._config.tie_word_embeddings
        return embedding, embedding if is_tied else self._plain(HEAD, self._tables)

    def finish(self, weights: FusedWeights) -> LoadedWeights:
        """The weights with their totals."""
        num_rounded = Counter[int]()
        for bits, size, _, _ in self._rounded:
            num_rounded[bits] += size
        del num_rounded[0]
        errors, squares = (sum(each[i] for each in self._rounded) for i in (2, 3))
        return LoadedWeights(
            weights,
            sum(self._num_parameters),
            self.memory.num_bytes,
            num_rounded,
            math.sqrt(errors / squares) if squares else 0.0,
        )

    def _plain(self, name: str, rounding: Rounding) -> np.ndarray:
        return self.memory.add(plain_columns(self._matrix(name, rounding)))

    def _qkv_bias(self, attention: str, unit: int) -> np.ndarray:
        return qkv_bias([self.vector(f"{attention}.{name}_proj.bias") for name in "qkv"], unit)

    def _head_norm(self, name: str) -> np.ndarray | None:
        return self.vector(name) if self._config.qk_norm else None

    def _matrix(self, name: str, rounding: Rounding) -> Groups:
        groups, is_exact = _stored_groups(self._tensors, name, rounding.kept)
        bits = 0
        if groups is None or not is_exact:
            values = self._tensors.dense(name).float().numpy()
            if groups is None:
                groups = _rounded(name, values, rounding)
                bits = 4 if isinstance(groups, Groups4) else 8
            self._rounded.append((bits, values.size, *_errors(values, groups)))
        self._num_parameters.append(groups.scale.size * GROUP)
        return groups


def _rounded(name: str, values: np.ndarray, rounding: Rounding) -> Groups:
    try:
        return rounding.to_groups(values)
    except ValueError as error:
        raise ModelLoadError(f"{name}: {error}") from error


def _stored_groups(tensors: Tensors, name: str, kept: GroupTypes) -> tuple[Groups | None, bool]:
    """The tensor in the groups it is stored in, rows in transformers' order (None: of no such type), and whether exactly."""
    if not isinstance(tensors, GGUFTensors):
        return None, False
    tensor, rows = tensors.stored(name)
    convert = kept.get(tensor.quantization)
    if convert is None:
        return None, False
    groups = convert(tensor.rows())
    is_exact = tensor.quantization not in INEXACT_TYPES
    return (groups if rows is None else take_rows(groups, rows.numpy())), is_exact


def _errors(values: np.ndarray, groups: Groups) -> tuple[float, float]:
    """Sums of squares of the error and of the weights over some rows spread over the matrix, scaled to all of it."""
    rows = slice(None, None, max(1, len(values) // SAMPLE_ROWS))
    sample = values[rows].astype(np.float64)
    scale = values.size / sample.size
    error = sample - to_float(take_rows(groups, rows))
    return scale * float((error**2).sum()), scale * float((sample**2).sum())
