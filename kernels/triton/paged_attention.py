"""Causal attention over paged keys and values for any mix of prefill chunks and decodes: two kernels, one entry.

Each kernel takes its own sequences of the batch, those with one query token or those with more, and passes by the
others; a kernel that can have none is not launched.
"""

import torch

from kernels.attention_rules import AttentionRules
from kernels.kv_pool import LayerCache
from kernels.triton.attention_tile import Operands
from kernels.triton.chip import chip_of
from kernels.triton.decode_attention import decode_attention
from kernels.triton.prefill_attention import prefill_attention


def paged_attention(
    query: torch.Tensor,
    cache: LayerCache,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    max_query_len: int,
    rules: AttentionRules,
) -> torch.Tensor:
    """See `kernels.ops.PagedAttention`."""
    num_tokens, num_seqs = query.shape[0], seq_lens.shape[0]
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    operands = Operands(query, cache, block_tables, seq_lens, query_start_loc, out, rules)
    chip = chip_of(query.device)
    if max_query_len > 1:
        prefill_attention(operands, chip)
    if max_query_len == 1 or num_tokens < max_query_len * num_seqs:
        decode_attention(operands, chip)
    return out
