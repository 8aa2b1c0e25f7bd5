"""Attention with rotary positions over the paged KV pool. Where tokens lie there comes from the step's context."""

import torch

from engine.attention_metadata import current_metadata
from kernels.attention_rules import AttentionRules
from kernels.kv_pool import LayerCache
from kernels.ops import KernelBackend


class Attention:
    """Rotates queries and keys, stores keys and values in the pool, attends to what a sequence has there."""

    def __init__(self, rules: AttentionRules, ops: KernelBackend) -> None:
        self.rules = rules
        self.ops = ops
        self.cache = LayerCache(torch.empty(0), torch.empty(0))

    def bind(self, cache: LayerCache) -> None:
        """Use this layer's part of the pool."""
        self.cache = cache

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> torch.Tensor:
        """query [num_tokens, num_heads, head_dim], key and value [num_tokens, num_kv_heads, head_dim].

        query and key are overwritten; positions and cos_sin are those of `kernels.ops.RotateAndStore`.
        """
        step = current_metadata()
        self.ops.rotate_and_store(
            query, key, value, positions, cos_sin, self.cache, step.slot_mapping
        )
        return self.ops.paged_attention(
            query,
            self.cache,
            step.block_tables,
            step.seq_lens,
            step.query_start_loc,
            step.max_query_len,
            self.rules,
        )
