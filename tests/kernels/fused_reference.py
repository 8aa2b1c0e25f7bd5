"""The fused step in plain numpy, float32 and contiguous memory: what every result is compared with.

Also builds random models with the packed weights and the same weights dequantised.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from kernels.cpu.fused.compiled import kernels
from kernels.cpu.fused.features import best_instruction_set, cpu_features, missing_features
from kernels.cpu.fused.memory_pool import aligned_zeros
from kernels.cpu.fused.model import FusedLayer, FusedModel, FusedShape, FusedWeights, StepInput
from kernels.cpu.fused.packing import Groups, Groups4, from_float, to_float
from kernels.cpu.fused.weights import (
    PackedMemory,
    gate_up_columns,
    plain_columns,
    qkv_bias,
    qkv_columns,
)

MAX_POSITIONS = 2048
INSTRUCTION_SET = os.environ.get("TESTED_INSTRUCTION_SET", best_instruction_set(cpu_features()))
_missing = missing_features(INSTRUCTION_SET, cpu_features())
needs_fused_cpu = pytest.mark.skipif(bool(_missing), reason=f"this CPU lacks {', '.join(_missing)}")


def kernel_function(name: str, *argument_types: type) -> Callable[..., None]:
    """One compiled kernel, called by address; arguments are int64 if no types are given for them."""
    address = kernels(INSTRUCTION_SET).get_function_address(f"pageturn_{name}")
    assert address, f"no kernel is called {name}"
    return ctypes.CFUNCTYPE(None, *argument_types)(address)


def aligned(size: tuple[int, ...], kind: type) -> np.ndarray:
    """Zeros that start at a cache line."""
    num_bytes = int(np.prod(size)) * np.dtype(kind).itemsize
    return aligned_zeros(num_bytes).view(kind).reshape(size)


@dataclass
class DenseLayer:
    """A layer's weights in float32, [outputs, inputs] each."""

    input_norm: np.ndarray
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    biases: tuple[np.ndarray, ...] | None
    q_norm: np.ndarray | None
    k_norm: np.ndarray | None
    output: np.ndarray
    post_norm: np.ndarray
    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray


@dataclass
class DenseModel:
    """A whole model in float32."""

    shape: FusedShape
    layers: list[DenseLayer]
    final_norm: np.ndarray
    embedding: np.ndarray
    head: np.ndarray
    cosines: np.ndarray
    sines: np.ndarray

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Logits of every position [tokens, vocab]."""
        return self.states(tokens) @ self.head.T

    def states(self, tokens: list[int]) -> np.ndarray:
        """States of every position after the final norm [tokens, hidden]."""
        x = self.embedding[tokens]
        for layer in self.layers:
            x = x + self._attention(layer, _norm(x, layer.input_norm, self.shape.epsilon))
            h = _norm(x, layer.post_norm, self.shape.epsilon)
            gate = h @ layer.gate.T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ layer.up.T)) @ layer.down.T
        return _norm(x, self.final_norm, self.shape.epsilon)

    def _attention(self, layer: DenseLayer, h: np.ndarray) -> np.ndarray:
        shape, n = self.shape, len(h)
        biases = layer.biases or (0, 0, 0)
        q, k, v = (
            (h @ w.T + bias).reshape(n, -1, shape.head_dim)
            for w, bias in zip((layer.q, layer.k, layer.v), biases, strict=True)
        )
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = _norm(q, layer.q_norm, shape.epsilon), _norm(k, layer.k_norm, shape.epsilon)
        q, k = self._rotate(q), self._rotate(k)
        per_kv = shape.num_heads // shape.num_kv_heads
        k, v = np.repeat(k, per_kv, axis=1), np.repeat(v, per_kv, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * shape.softmax_scale
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, v).reshape(n, -1) @ layer.output.T

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        half = self.shape.head_dim // 2
        cos, sin = (table[: len(x), None] for table in (self.cosines, self.sines))
        x1, x2 = x[..., :half], x[..., half:]
        return np.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


def _norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


class RandomModel:
    """A model with random weights, packed and dense. `bits` chooses the format of the layers; 0 mixes both."""

    def __init__(
        self, shape: FusedShape, *, seed: int, bits: int = 4, bias=False, qk_norm=False
    ) -> None:
        self._rng, self._bits = np.random.default_rng(seed), bits
        self._memory = PackedMemory()
        self.shape = shape
        pairs = [self._layer(bias, qk_norm) for _ in range(shape.num_layers)]
        embedding, head = (
            from_float(self._normal(shape.vocab_size, shape.hidden_size)) for _ in range(2)
        )
        angles = np.outer(
            np.arange(MAX_POSITIONS), 1e4 ** -np.linspace(0, 1, shape.head_dim // 2, endpoint=False)
        )
        cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        final_norm = self._norm_weight(shape.hidden_size)
        rest = {"final_norm": final_norm, "cosines": cosines, "sines": sines}
        self.dense = DenseModel(
            shape, [d for _, d in pairs], embedding=to_float(embedding), head=to_float(head), **rest
        )
        self.weights = FusedWeights(
            layers=[f for f, _ in pairs],
            embedding=self._memory.add(plain_columns(embedding)),
            head=self._memory.add(plain_columns(head)),
            memory=self._memory,
            **rest,
        )

    def fused(
        self, *, num_blocks=64, block_size=16, max_rows=256, max_outputs=64, num_threads=2
    ) -> FusedModel:
        """The packed model with a KV pool of its own, filled with NaN so that nothing unwritten may count."""
        model = FusedModel(
            self.shape, self.weights, num_blocks=num_blocks, block_size=block_size,
            max_rows=max_rows, max_outputs=max_outputs, num_threads=num_threads,
            instruction_set=INSTRUCTION_SET,
        )  # fmt: skip
        model.kv[:] = 0x7FC0
        return model

    def _layer(self, bias: bool, qk_norm: bool) -> tuple[FusedLayer, DenseLayer]:
        s = self.shape
        sizes = {"q": s.num_heads, "k": s.num_kv_heads, "v": s.num_kv_heads}
        q, k, v = (self._groups(n * s.head_dim, s.hidden_size, name) for name, n in sizes.items())
        output = self._groups(s.hidden_size, s.num_heads * s.head_dim)
        gate, up = (
            self._groups(s.intermediate_size, s.hidden_size, name) for name in ("gate", "up")
        )
        down = self._groups(s.hidden_size, s.intermediate_size)
        biases = tuple(self._normal(n * s.head_dim) for n in sizes.values()) if bias else None
        norms = [self._norm_weight(s.hidden_size) for _ in range(2)]
        q_norm, k_norm = (self._norm_weight(s.head_dim) if qk_norm else None for _ in range(2))
        dense = DenseLayer(
            input_norm=norms[0],
            q=to_float(q),
            k=to_float(k),
            v=to_float(v),
            biases=biases,
            q_norm=q_norm,
            k_norm=k_norm,
            output=to_float(output),
            post_norm=norms[1],
            gate=to_float(gate),
            up=to_float(up),
            down=to_float(down),
        )
        unit = s.heads_per_unit * s.head_dim
        fused = FusedLayer(
            input_norm=norms[0],
            qkv=self._memory.add(qkv_columns(q, k, v, unit)),
            qkv_bias=qkv_bias(biases, unit) if biases else None,
            q_norm=q_norm,
            k_norm=k_norm,
            output=self._memory.add(plain_columns(output)),
            post_norm=norms[1],
            gate_up=self._memory.add(gate_up_columns(gate, up)),
            down=self._memory.add(plain_columns(down)),
        )
        return fused, dense

    def _groups(self, num_outputs: int, num_inputs: int, name: str = "") -> Groups:
        values = self._normal(num_outputs, num_inputs) / np.sqrt(num_inputs)
        if self._bits == 8 or (self._bits == 0 and name in ("v", "")):
            return from_float(values)
        return quantize_4(values)

    def _normal(self, *size: int) -> np.ndarray:
        return self._rng.standard_normal(size).astype(np.float32)

    def _norm_weight(self, size: int) -> np.ndarray:
        return 1 + 0.1 * self._normal(size)


def quantize_4(values: np.ndarray) -> Groups4:
    """float32 weights rounded to 4 bits with a minimum, as a Q4_1 file stores them."""
    groups = values.reshape(len(values), -1, 32)
    low = groups.min(-1).astype(np.float16)
    scale = ((groups.max(-1) - low) / 15).astype(np.float16)
    nibbles = np.clip(np.rint((groups - low[..., None]) / scale[..., None]), 0, 15).astype(np.uint8)
    packed = nibbles[..., :16] | nibbles[..., 16:] << 4
    return Groups4(packed.view(np.uint32), scale, low)


@dataclass
class Run:
    """Some tokens of one sequence at `start`, over `blocks`; `wants_logits` of its last row, or the states of all its rows."""

    tokens: list[int]
    start: int
    blocks: list[int]
    wants_logits: bool = True
    wants_states: bool = False


def step_input(runs: list[Run]) -> StepInput:
    """The arrays of a step with these runs."""
    lengths = [len(run.tokens) for run in runs]
    ends = np.cumsum(lengths, dtype=np.int32)
    tables = np.cumsum([0, *(len(run.blocks) for run in runs)], dtype=np.int32)
    wanted = [end - 1 for run, end in zip(runs, ends, strict=True) if run.wants_logits]
    with_states = [
        row
        for run, end in zip(runs, ends, strict=True)
        for row in range(end - len(run.tokens), end)
        if run.wants_states
    ]

    def array(values) -> np.ndarray:
        return np.array(values, dtype=np.int32)

    return StepInput(
        token_ids=array([t for run in runs for t in run.tokens]),
        seq_rows=array([0, *ends]),
        positions=array([run.start for run in runs]),
        tables=tables[:-1].copy(),
        block_tables=array([b for run in runs for b in run.blocks]),
        output_rows=array(wanted),
        state_rows=array(with_states),
    )
