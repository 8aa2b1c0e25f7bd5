"""Write the keys and values of new tokens to their slots: one program per token."""

import torch
import triton
import triton.language as tl


@triton.jit
def _store_kv_cache_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_key_block,
    stride_value_block,
    NUM_KV_HEADS: tl.constexpr,
    NUM_KV_HEADS_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    block_id = slot // BLOCK_SIZE
    heads = tl.arange(0, NUM_KV_HEADS_PADDED)[:, None]
    offs_d = tl.arange(0, HEAD_DIM_PADDED)[None, :]
    mask = (heads < NUM_KV_HEADS) & (offs_d < HEAD_DIM)
    inside = (heads * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM + offs_d

    key_offsets = token * stride_key_token + heads * stride_key_head + offs_d
    key = tl.load(key_ptr + key_offsets, mask=mask)
    key_target = key_cache_ptr + block_id * stride_key_block + inside
    tl.store(key_target, key.to(key_cache_ptr.dtype.element_ty), mask=mask)

    value_offsets = token * stride_value_token + heads * stride_value_head + offs_d
    value = tl.load(value_ptr + value_offsets, mask=mask)
    value_target = value_cache_ptr + block_id * stride_value_block + inside
    tl.store(value_target, value.to(value_cache_ptr.dtype.element_ty), mask=mask)


def store_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """See `kernels.ops.StoreKVCache`."""
    num_tokens, num_kv_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    _store_kv_cache_kernel[(num_tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        key_cache.stride(0),
        value_cache.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        NUM_KV_HEADS_PADDED=triton.next_power_of_2(num_kv_heads),
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=key_cache.shape[2],
        enable_fp_fusion=True,
    )
