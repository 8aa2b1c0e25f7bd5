"""Every operation in plain PyTorch: the specification, and the oracle of the tests. Slow on purpose.

The contracts stand in `kernels.ops`. Arithmetic is done in float32 and rounded once, at the end.
"""

import torch

from kernels.attention_rules import AttentionRules
from kernels.eight_bits import LARGEST, dequantize, quantize
from kernels.kv_pool import LayerCache

max_head_dim = 2**16
cache_dtypes = frozenset({torch.float32, torch.bfloat16, torch.float16, *LARGEST})


def rotate_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: LayerCache,
    slot_mapping: torch.Tensor,
) -> None:
    query.copy_(rotate(query, positions, cos_sin))
    store_kv_cache(rotate(key, positions, cos_sin), value, cache, slot_mapping)


def store_kv_cache(
    key: torch.Tensor, value: torch.Tensor, cache: LayerCache, slot_mapping: torch.Tensor
) -> None:
    """Write key and value [num_tokens, num_kv_heads, head_dim] to their slots; a token with a negative slot is left out."""
    block_size = cache.keys.shape[2]
    stored = slot_mapping >= 0
    where = (slot_mapping[stored] // block_size, slice(None), slot_mapping[stored] % block_size)
    _put(key[stored], cache.keys, cache.key_scales, where)
    _put(value[stored], cache.values, cache.value_scales, where)


def _put(
    heads: torch.Tensor, numbers: torch.Tensor, scales: torch.Tensor | None, where: tuple
) -> None:
    if scales is None:
        numbers[where] = heads.to(numbers.dtype)
        return
    numbers[where], scales[where] = quantize(heads, numbers.dtype)


def paged_attention(
    query: torch.Tensor,
    cache: LayerCache,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    max_query_len: int,
    rules: AttentionRules,
) -> torch.Tensor:
    out = torch.zeros_like(query)
    starts = query_start_loc.tolist()
    for s, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(starts[s], starts[s + 1])
        query_len = rows.stop - rows.start
        assert query_len <= max_query_len, "a query is longer than max_query_len"
        if query_len > 0 and seq_len > 0:
            seen = range(rules.first_visible(seq_len - query_len), seq_len)
            keys = _gather(cache.keys, cache.key_scales, block_tables[s], seen)
            values = _gather(cache.values, cache.value_scales, block_tables[s], seen)
            out[rows] = _attend(query[rows].float(), keys, values, rules).to(out.dtype)
    return out


def _gather(
    numbers: torch.Tensor, scales: torch.Tensor | None, block_table: torch.Tensor, seen: range
) -> torch.Tensor:
    """Rows `seen` of a paged sequence as float32 [num_kv_heads, len(seen), head_dim]."""
    block_size = numbers.shape[2]
    first_block, skipped = divmod(seen.start, block_size)
    block_ids = block_table[first_block : -(-seen.stop // block_size)].long()
    blocks = numbers[block_ids]  # [num_blocks, num_kv_heads, block_size, head_dim]
    blocks = blocks.float() if scales is None else dequantize(blocks, scales[block_ids])
    return blocks.transpose(0, 1).flatten(1, 2)[:, skipped : skipped + len(seen)]


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rules: AttentionRules
) -> torch.Tensor:
    """query [query_len, num_heads, head_dim] over keys and values [num_kv_heads, num_keys, head_dim], the last of a sequence."""
    query_len, num_heads, _ = query.shape
    num_kv_heads, num_keys, _ = keys.shape
    group_size = num_heads // num_kv_heads
    keys, values = (x.repeat_interleave(group_size, dim=0) for x in (keys, values))
    scores = torch.einsum("qhd,hkd->hqk", query, keys) * rules.scale
    if rules.soft_cap is not None:
        scores = rules.soft_cap * torch.tanh(scores / rules.soft_cap)
    positions = torch.arange(num_keys - query_len, num_keys, device=query.device)[:, None]
    of_keys = torch.arange(num_keys, device=query.device)[None, :]
    hidden = of_keys > positions
    if rules.window is not None:
        hidden |= of_keys <= positions - rules.window
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    # A row before the sequence's first key sees nothing; its softmax is NaN and its answer 0.
    weights = weights.masked_fill(hidden, 0.0)
    return torch.einsum("hqk,hkd->qhd", weights, values)


def copy_blocks(memory: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    memory[:, :, dst] = memory[:, :, src]


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


def quantized_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    y = x.float() @ dequantize(weight, scales).T
    return (y if bias is None else y + bias.float()).to(x.dtype)


def rotate(heads: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Heads [num_tokens, num_heads, head_dim] rotated by their positions, float32."""
    cos, sin = (
        cos_sin[positions].float()[:, None, :].chunk(2, dim=-1)
    )  # [num_tokens, 1, head_dim / 2]
    x1, x2 = heads.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
