"""The Llama family (Touvron et al. 2023): Llama, Mistral, Qwen2 (q, k, v biases), Qwen3 (q and k norms), SmolLM.

Between layers travel `hidden`, what the last block added, and `residual`, the sum so far in float32: rounding that sum
to a short float at every layer would cost most of the accuracy. Weights come fused: q, k and v in one matrix, gate and
up in another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from engine.layers.attention import Attention
from engine.layers.linear import Linear
from engine.layers.rms_norm import RMSNorm
from engine.layers.rotary_embedding import build_cos_sin
from engine.loader.weights import ModelWeights
from engine.models.config import ModelConfig
from kernels.attention_rules import AttentionRules
from kernels.kv_pool import LayerCache
from kernels.ops import KernelBackend


@dataclass(frozen=True)
class Source:
    """What a part of the model is made from: its configuration, the kernels, and the weights whose names begin with `prefix`."""

    config: ModelConfig
    weights: ModelWeights
    ops: KernelBackend
    prefix: str = "model"

    def below(self, name: str) -> "Source":
        """What a part of this part is made from."""
        return replace(self, prefix=f"{self.prefix}.{name}")

    def linear(self, *names: str, bias: bool) -> Linear:
        """One product whose outputs are those of all `names`, in order."""
        return self.weights.linear(*(f"{self.prefix}.{name}" for name in names), bias=bias)

    def norm(self, name: str) -> RMSNorm:
        """The norm of this name."""
        weight = self.weights.vector(f"{self.prefix}.{name}")
        return RMSNorm(weight, self.config.rms_norm_eps, self.ops)


class LlamaAttention:
    """Grouped-query attention with rotary positions, within a window if there is one."""

    def __init__(self, source: Source, window: int | None) -> None:
        config = source.config
        self.num_heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        self.head_dim = config.head_dim
        self.qkv_proj = source.linear("q_proj", "k_proj", "v_proj", bias=config.qkv_bias)
        self.o_proj = source.linear("o_proj", bias=config.output_bias)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm, self.k_norm = source.norm("q_norm"), source.norm("k_norm")
        self.attention = Attention(AttentionRules(config.head_dim**-0.5, window), source.ops)

    def __call__(
        self, x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
    ) -> torch.Tensor:
        num_tokens = x.shape[0]
        qkv = self.qkv_proj(x).view(num_tokens, -1, self.head_dim)
        query, key, value = qkv.split_with_sizes(self.num_heads, dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self._normalise(query, self.q_norm), self._normalise(key, self.k_norm)
        attended = self.attention(query, key, value, positions, cos_sin)
        return self.o_proj(attended.view(num_tokens, -1))

    def _normalise(self, heads: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
        return norm(heads.reshape(-1, self.head_dim)).view(heads.shape)


class LlamaMLP:
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, source: Source) -> None:
        self.ops = source.ops
        self.gate_up_proj = source.linear("gate_proj", "up_proj", bias=source.config.mlp_bias)
        self.down_proj = source.linear("down_proj", bias=source.config.mlp_bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.ops.silu_and_mul(self.gate_up_proj(x)))


class LlamaDecoderLayer:
    """Normalise, attend, normalise, transform; each block's output joins the residual at the next norm."""

    def __init__(self, source: Source, window: int | None) -> None:
        self.input_layernorm = source.norm("input_layernorm")
        self.post_attention_layernorm = source.norm("post_attention_layernorm")
        self.self_attn = LlamaAttention(source.below("self_attn"), window)
        self.mlp = LlamaMLP(source.below("mlp"))

    def __call__(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = self.input_layernorm.add(hidden, residual)
        hidden = self.self_attn(x, positions, cos_sin)
        x, residual = self.post_attention_layernorm.add(hidden, residual)
        return self.mlp(x), residual


class LlamaForCausalLM:
    """The whole model, over positions below `max_model_len`. `progress` is told the share of layers built."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        ops: KernelBackend,
        *,
        max_model_len: int,
        progress: Callable[[float], None],
    ) -> None:
        self.config, self.dtype = config, weights.dtype
        self.embed_tokens, self.lm_head = weights.embedding_and_head(config.tie_word_embeddings)
        source = Source(config, weights, ops)
        self.layers: list[LlamaDecoderLayer] = []
        for index, window in enumerate(config.windows(max_model_len)):
            progress(index / config.num_layers)
            self.layers.append(LlamaDecoderLayer(source.below(f"layers.{index}"), window))
        self.norm = source.norm("norm")
        cos_sin = build_cos_sin(config.rope, config.head_dim, max_model_len, weights.rope_factors())
        self.cos_sin = cos_sin.to(weights.device)

    def bind_kv_cache(self, caches: Sequence[LayerCache]) -> None:
        """Attend over the pool, of which each layer has its part."""
        for layer, cache in zip(self.layers, caches, strict=True):
            layer.self_attn.attention.bind(cache)

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Final states [num_tokens, hidden_size] float32 of input_ids, positions [num_tokens], not normalised."""
        residual = self.embed_tokens(input_ids)
        hidden = torch.zeros_like(residual, dtype=self.dtype)
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, positions, self.cos_sin)
        return residual + hidden

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32 of final states [num_rows, hidden_size]."""
        return self.lm_head(self.norm(states))
