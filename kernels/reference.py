"""Every operation in plain PyTorch: the specification, and the oracle of the tests. Slow on purpose.

The contracts stand in `kernels.ops`. Arithmetic is done in float32 and rounded once, at the end.
"""

import torch

max_head_dim = 2**16


def rotate_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    rotary(query, key, positions, cos_sin)
    store_kv_cache(key, value, key_cache, value_cache, slot_mapping)


def store_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write key and value [num_tokens, num_kv_heads, head_dim] to their slots; a token with a negative slot is left out."""
    block_size = key_cache.shape[2]
    stored = slot_mapping >= 0
    key, value, slot_mapping = key[stored], value[stored], slot_mapping[stored]
    block_ids, offsets = slot_mapping // block_size, slot_mapping % block_size
    key_cache[block_ids, :, offsets] = key.to(key_cache.dtype)
    value_cache[block_ids, :, offsets] = value.to(value_cache.dtype)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    max_query_len: int,
    scale: float,
) -> torch.Tensor:
    out = torch.zeros_like(query)
    starts = query_start_loc.tolist()
    for s, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(starts[s], starts[s + 1])
        assert rows.stop - rows.start <= max_query_len, "a query is longer than max_query_len"
        if rows.stop > rows.start and seq_len > 0:
            keys = _gather(key_cache, block_tables[s], seq_len)
            values = _gather(value_cache, block_tables[s], seq_len)
            out[rows] = _attend(query[rows].float(), keys, values, scale).to(out.dtype)
    return out


def _gather(cache: torch.Tensor, block_table: torch.Tensor, seq_len: int) -> torch.Tensor:
    """The first seq_len rows of a paged sequence as float32 [num_kv_heads, seq_len, head_dim]."""
    block_size = cache.shape[2]
    num_blocks = (seq_len + block_size - 1) // block_size
    blocks = cache[
        block_table[:num_blocks].long()
    ]  # [num_blocks, num_kv_heads, block_size, head_dim]
    return blocks.transpose(0, 1).flatten(1, 2)[:, :seq_len].float()


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """query [query_len, num_heads, head_dim] over keys and values [num_kv_heads, seq_len, head_dim]."""
    query_len, num_heads, _ = query.shape
    num_kv_heads, seq_len, _ = keys.shape
    group_size = num_heads // num_kv_heads
    keys, values = (x.repeat_interleave(group_size, dim=0) for x in (keys, values))
    scores = torch.einsum("qhd,hkd->hqk", query, keys) * scale
    positions = torch.arange(seq_len - query_len, seq_len, device=query.device)
    hidden = torch.arange(seq_len, device=query.device)[None, :] > positions[:, None]
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    # A row before the sequence's first key sees nothing; its softmax is NaN and its answer 0.
    weights = weights.masked_fill(hidden, 0.0)
    return torch.einsum("hqk,hkd->qhd", weights, values)


def copy_blocks(kv_cache: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    kv_cache[:, :, dst] = kv_cache[:, :, src]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _normalise(x.float(), weight, eps).to(x.dtype)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x.float() + residual.float()
    return _normalise(total, weight, eps).to(x.dtype), total.to(residual.dtype)


def _normalise(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.float()


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def rotary(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> None:
    """Rotate query and key [num_tokens, heads, head_dim] in place."""
    cos, sin = (
        cos_sin[positions].float()[:, None, :].chunk(2, dim=-1)
    )  # [num_tokens, 1, head_dim / 2]
    for x in (query, key):
        x1, x2 = x.float().chunk(2, dim=-1)
        x.copy_(torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1))
