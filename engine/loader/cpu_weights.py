"""Weights for the fused CPU step: kept as the file has them where its 4-bit and 8-bit groups can, else rounded to 8 bits.

GGUF's Q4_0, Q4_1, Q5_0 and Q8_0 are exact. Other types and floating-point models are rounded to 8 bits in groups of 32
inputs, and with `--quantization int8` those of 4 bits too; `rounding_error` says by how much, as the root mean square of the difference over that of the weights.
"""

import math
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
    from_float,
    from_q4_0,
    from_q4_1,
    from_q5_0,
    from_q8_0,
    take_rows,
    to_float,
)
from kernels.cpu.fused.weights import (
    PackedMemory,
    gate_up_columns,
    plain_columns,
    qkv_bias,
    qkv_columns,
)

GroupTypes = Mapping[QuantizationType, Callable[[np.ndarray], Groups]]
EIGHT_BIT_TYPES: GroupTypes = {QuantizationType.Q5_0: from_q5_0, QuantizationType.Q8_0: from_q8_0}
EXACT_TYPES: GroupTypes = {
    QuantizationType.Q4_0: from_q4_0,
    QuantizationType.Q4_1: from_q4_1,
    **EIGHT_BIT_TYPES,
}
SAMPLE_ROWS = 64
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class LoadedWeights:
    """Packed weights, how many parameters they are, in how many bytes, and how exact."""

    weights: FusedWeights
    num_parameters: int
    num_bytes: int
    num_rounded: int
    rounding_error: float

    @property
    def description(self) -> str:
        """One line for people."""
        if not self.num_rounded:
            return "as in the file"
        share = self.num_rounded / self.num_parameters
        return f"{share:.0%} rounded to 8 bits, relative error {self.rounding_error:.2%}"


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
    exact_types: GroupTypes,
    num_positions: int,
    num_threads: int,
    progress: Progress,
) -> LoadedWeights:
    """Reads and packs all layers, several at a time; tensors of `exact_types` are kept as they are.

    Raises ModelLoadError for a tensor that is missing or unusable.
    """
    reader = _Reader(tensors, config, exact_types)
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

    def __init__(self, tensors: Tensors, config: ModelConfig, exact_types: GroupTypes) -> None:
        self._tensors, self._config, self._exact_types = tensors, config, exact_types
        self._shape = fused_shape(config)
        self.memory = PackedMemory()
        self._counts: list[tuple[int, int, float, float]] = []

    def vector(self, name: str) -> np.ndarray:
        """A norm or bias, float32."""
        values = np.ascontiguousarray(self._tensors.dense(name).float().numpy())
        self._counts.append((values.size, 0, 0.0, 0.0))
        return values

    def layer(self, index: int) -> FusedLayer:
        """All of one layer."""
        prefix, config = f"model.layers.{index}", self._config
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        q, k, v = (self._matrix(f"{attention}.{name}_proj.weight") for name in "qkv")
        unit = self._shape.heads_per_unit * config.head_dim
        gate, up = (self._matrix(f"{mlp}.{name}_proj.weight") for name in ("gate", "up"))
        return FusedLayer(
            input_norm=self.vector(f"{prefix}.input_layernorm.weight"),
            qkv=self.memory.add(qkv_columns(q, k, v, unit)),
            qkv_bias=self._qkv_bias(attention, unit) if config.qkv_bias else None,
            q_norm=self._head_norm(f"{attention}.q_norm.weight"),
            k_norm=self._head_norm(f"{attention}.k_norm.weight"),
            output=self._plain(f"{attention}.o_proj.weight"),
            post_norm=self.vector(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=self.memory.add(gate_up_columns(gate, up)),
            down=self._plain(f"{mlp}.down_proj.weight"),
        )

    def embedding_and_head(self) -> tuple[np.ndarray, np.ndarray]:
        """Block tables over token ids; one and the same when the model ties them."""
        embedding = self._plain(EMBEDDING)
        return embedding, embedding if self._config.tie_word_embeddings else self._plain(HEAD)

    def finish(self, weights: FusedWeights) -> LoadedWeights:
        """The weights with their totals."""
        sizes, rounded, errors, squares = (
            sum(column) for column in zip(*self._counts, strict=True)
        )
        error = math.sqrt(errors / squares) if squares else 0.0
        return LoadedWeights(weights, int(sizes), self.memory.num_bytes, int(rounded), error)

    def _plain(self, name: str) -> np.ndarray:
        return self.memory.add(plain_columns(self._matrix(name)))

    def _qkv_bias(self, attention: str, unit: int) -> np.ndarray:
        return qkv_bias([self.vector(f"{attention}.{name}_proj.bias") for name in "qkv"], unit)

    def _head_norm(self, name: str) -> np.ndarray | None:
        return self.vector(name) if self._config.qk_norm else None

    def _matrix(self, name: str) -> Groups:
        groups = _stored_groups(self._tensors, name, self._exact_types)
        if groups is not None:
            self._counts.append((groups.scale.size * 32, 0, 0.0, 0.0))
            return groups
        values = self._tensors.dense(name).float().numpy()
        try:
            groups = from_float(values)
        except ValueError as error:
            raise ModelLoadError(f"{name}: {error}") from error
        self._counts.append((values.size, values.size, *_rounding(values, groups)))
        return groups


def _stored_groups(tensors: Tensors, name: str, exact_types: GroupTypes) -> Groups | None:
    """The tensor in the groups it is stored in, rows in transformers' order; None if it is of no such type."""
    if not isinstance(tensors, GGUFTensors):
        return None
    tensor, rows = tensors.stored(name)
    convert = exact_types.get(tensor.quantization)
    if convert is None:
        return None
    groups = convert(tensor.rows())
    return groups if rows is None else take_rows(groups, rows.numpy())


def _rounding(values: np.ndarray, groups: Groups) -> tuple[float, float]:
    """Sums of squares of the error and of the weights over some rows spread over the matrix, scaled to all of it."""
    rows = slice(None, None, max(1, len(values) // SAMPLE_ROWS))
    sample = values[rows].astype(np.float64)
    scale = values.size / sample.size
    error = sample - to_float(take_rows(groups, rows))
    return scale * float((error**2).sum()), scale * float((sample**2).sum())
