"""Every operation in plain PyTorch: the specification, and the oracle of the tests. Slow on purpose.

The contracts stand in `kernels.ops`. Arithmetic is done in float32 and rounded once, at the end.
"""

import torch

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
    scale: float,
) -> torch.Tensor:
    out = torch.zeros_like(query)
    starts = query_start_loc.tolist()
    for s, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(starts[s], starts[s + 1])
        assert rows.stop - rows.start <= max_query_len, "a query is longer than max_query_len"
        if rows.stop > rows.start and seq_len > 0:
            keys = _gather(cache.keys, cache.key_scales, block_tables[s], seq_len)
            values = _gather(cache.values, cache.value_scales, block_tables[s], seq_len)
            out[rows] = _attend(query[rows].float(), keys, values, scale).to(out.dtype)
    return out


def _gather(
    numbers: torch.Tensor, scales: torch.Tensor | None, block_table: torch.Tensor, seq_len: int
) -> torch.Tensor:
    """The first seq_len rows of a paged sequence as float32 [num_kv_heads, seq_len, head_dim]."""
    block_size = numbers.shape[2]
    block_ids = block_table[: (seq_len + block_size - 1) // block_size].long()
    blocks = numbers[block_ids]  # [num_blocks, num_kv_heads, block_size, head_dim]
    blocks = blocks.float() if scales is None else dequantize(blocks, scales[block_ids])
    return blocks.transpose(0, 1).flatten(1, 2)[:, :seq_len]


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
