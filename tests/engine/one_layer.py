"""A model of one layer, and its logits at chosen positions in float64, however long the text.

In one layer the keys and values of a token depend on that token and its position only, so the logits at one position cost
as much as the text is long, not its square. Angles are products in float32, as in transformers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.engine.models.tiny import make_reference

Floats = NDArray[np.float64]
SHARPNESS = 2.0
"""How much larger q and k are than a new model's: some hundreds of keys decide, wherever they are."""


def make_one_layer(folder: Path, **sizes: Any) -> PreTrainedModel:
    """Save a random model whose attention prefers some keys to others."""
    model = make_reference("llama", num_hidden_layers=1, **sizes)
    with torch.no_grad():
        for name in ("q_proj", "k_proj"):
            model.get_parameter(f"model.layers.0.self_attn.{name}.weight").mul_(SHARPNESS)
    model.save_pretrained(folder)
    return model


@dataclass
class OneLayer:
    """The model again, in numpy; `rotary` is transformers' own, for its frequencies and magnitude."""

    state: dict[str, Floats]
    num_kv_heads: int
    head_dim: int
    epsilon: float
    rotary: LlamaRotaryEmbedding

    @classmethod
    def of(cls, model: PreTrainedModel, rotary: LlamaRotaryEmbedding) -> "OneLayer":
        """From transformers' model."""
        config: Any = model.config
        state = {
            name.removeprefix("model.").removeprefix("layers.0."): value.double().numpy()
            for name, value in model.state_dict().items()
        }
        return cls(state, config.num_key_value_heads, config.head_dim, config.rms_norm_eps, rotary)

    def logits(self, tokens: NDArray[np.int64], positions: list[int]) -> Floats:
        """Logits [len(positions), vocab_size] of a text [num_tokens] at some of its positions."""
        keys = self._rotate(self._heads("k", tokens), np.arange(len(tokens)))
        values = self._heads("v", tokens)
        return np.stack([self._logits_at(p, tokens, keys, values) for p in positions])

    def _logits_at(
        self, position: int, tokens: NDArray[np.int64], keys: Floats, values: Floats
    ) -> Floats:
        query = self._rotate(self._heads("q", tokens[[position]]), np.array([position]))[0]
        query = query.reshape(self.num_kv_heads, -1, self.head_dim)
        seen = slice(position + 1)
        scores = np.einsum("kgd,tkd->kgt", query, keys[seen]) / np.sqrt(self.head_dim)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = np.einsum("kgt,tkd->kgd", weights, values[seen]).reshape(-1)
        x = self.state["embed_tokens.weight"][tokens[position]]
        x = x + self.state["self_attn.o_proj.weight"] @ attended
        x = x + self._mlp(self._norm(x, "post_attention_layernorm"))
        return self.state["lm_head.weight"] @ self._norm(x, "norm")

    def _heads(self, name: str, tokens: NDArray[np.int64]) -> Floats:
        """[num_tokens, heads, head_dim], projected once per token of the vocabulary."""
        normed = self._norm(self.state["embed_tokens.weight"], "input_layernorm")
        projected = normed @ self.state[f"self_attn.{name}_proj.weight"].T
        return projected.reshape(len(projected), -1, self.head_dim)[tokens]

    def _rotate(self, x: Floats, positions: NDArray[np.int64]) -> Floats:
        frequencies = self.rotary.inv_freq.numpy()
        angles = np.outer(positions.astype(np.float32), frequencies).astype(np.float64)[:, None]
        cos, sin = np.cos(angles), np.sin(angles)
        near, far = np.split(x, 2, axis=-1)
        turned = np.concatenate([near * cos - far * sin, far * cos + near * sin], axis=-1)
        return turned * self.rotary.attention_scaling

    def _norm(self, x: Floats, name: str) -> Floats:
        scale = np.sqrt(np.square(x).mean(-1, keepdims=True) + self.epsilon)
        return x / scale * self.state[f"{name}.weight"]

    def _mlp(self, x: Floats) -> Floats:
        gate, up = (self.state[f"mlp.{name}_proj.weight"] @ x for name in ("gate", "up"))
        return self.state["mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
