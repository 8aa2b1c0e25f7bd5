"""Rotate query and key by their positions and write key and value to their slots, in one pass over q, k and v.

A program owns one token and one KV head: the query heads of the group are rotated in place, the key is rotated on its
way into the pool (RoFormer, Su et al. 2021), the value is copied there. Where the pool's numbers have eight bits, both are rounded on
that way, and the scales of the token and head are written beside them: nothing that is stored is read or rounded again.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.kv_pool import LayerCache
from kernels.triton.chip import Chip, chip_of
from kernels.triton.eight_bits import bits_of, quantize, scale_of, stride_of


@triton.jit
def rotate_and_store_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    positions_ptr,
    cos_sin_ptr,
    key_cache_ptr,
    value_cache_ptr,
    key_scales_ptr,
    value_scales_ptr,
    slot_mapping_ptr,
    stride_query_token,
    stride_query_head,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_key_block,
    stride_value_block,
    stride_key_scales,
    stride_value_scales,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    HALF: tl.constexpr = HEAD_DIM // 2
    token = (tl.program_id(0) // NUM_KV_HEADS).to(tl.int64)
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    offs_d = tl.arange(0, HEAD_DIM_PADDED // 2)
    exists = offs_d < HALF
    cos_sin_ptr += tl.load(positions_ptr + token) * HEAD_DIM
    cos = tl.load(cos_sin_ptr + offs_d, mask=exists, other=0.0).to(tl.float32)
    sin = tl.load(cos_sin_ptr + HALF + offs_d, mask=exists, other=0.0).to(tl.float32)

    group_head = tl.arange(0, GROUP_PADDED)[:, None]
    mask = (group_head < GROUP) & exists[None, :]
    first_head = query_ptr + token * stride_query_token + kv_head * GROUP * stride_query_head
    low = first_head + group_head * stride_query_head + offs_d[None, :]
    q1 = tl.load(low, mask=mask).to(tl.float32)
    q2 = tl.load(low + HALF, mask=mask).to(tl.float32)
    tl.store(low, (q1 * cos - q2 * sin).to(query_ptr.dtype.element_ty), mask=mask)
    tl.store(low + HALF, (q2 * cos + q1 * sin).to(query_ptr.dtype.element_ty), mask=mask)

    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    inside = (kv_head * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM
    source = key_ptr + token * stride_key_token + kv_head * stride_key_head + offs_d
    target = key_cache_ptr + slot // BLOCK_SIZE * stride_key_block + inside + offs_d
    k1 = tl.load(source, mask=exists, other=0.0).to(tl.float32)
    k2 = tl.load(source + HALF, mask=exists, other=0.0).to(tl.float32)
    low_key = k1 * cos - k2 * sin
    high_key = k2 * cos + k1 * sin
    key_type: tl.constexpr = key_cache_ptr.dtype.element_ty
    offs_scale = kv_head * BLOCK_SIZE + slot % BLOCK_SIZE
    if key_scales_ptr is not None:
        scale = tl.maximum(scale_of(low_key), scale_of(high_key))
        tl.store(key_scales_ptr + slot // BLOCK_SIZE * stride_key_scales + offs_scale, scale)
        low_key = quantize(low_key, scale, key_type)
        high_key = quantize(high_key, scale, key_type)
    tl.store(target, low_key.to(key_type), mask=exists)
    tl.store(target + HALF, high_key.to(key_type), mask=exists)

    offs_d = tl.arange(0, HEAD_DIM_PADDED)
    source = value_ptr + token * stride_value_token + kv_head * stride_value_head + offs_d
    target = value_cache_ptr + slot // BLOCK_SIZE * stride_value_block + inside + offs_d
    value = tl.load(source, mask=offs_d < HEAD_DIM, other=0.0)
    value_type: tl.constexpr = value_cache_ptr.dtype.element_ty
    if value_scales_ptr is not None:
        value = value.to(tl.float32)
        scale = scale_of(value)
        tl.store(value_scales_ptr + slot // BLOCK_SIZE * stride_value_scales + offs_scale, scale)
        value = quantize(value, scale, value_type)
    tl.store(target, value.to(value_type), mask=offs_d < HEAD_DIM)


def rotate_and_store_keywords(
    head_dim: int, num_heads: int, num_kv_heads: int, block_size: int, chip: Chip
) -> dict[str, Any]:
    """What the kernel is compiled for: constants and warps."""
    group = num_heads // num_kv_heads
    group_padded, padded = triton.next_power_of_2(group), triton.next_power_of_2(head_dim)
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group,
        "GROUP_PADDED": group_padded,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": padded,
        "BLOCK_SIZE": block_size,
        "num_warps": chip.warps_for(group_padded * padded // 2),
        "enable_fp_fusion": True,
    }


def rotate_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: LayerCache,
    slot_mapping: torch.Tensor,
) -> None:
    """See `kernels.ops.RotateAndStore`."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, block_size = cache.keys.shape[1:3]
    if num_tokens == 0:
        return
    keys, values = (bits_of(numbers) for numbers in (cache.keys, cache.values))
    rotate_and_store_kernel[(num_tokens * num_kv_heads,)](
        query,
        key,
        value,
        positions,
        cos_sin,
        keys,
        values,
        cache.key_scales,
        cache.value_scales,
        slot_mapping,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        keys.stride(0),
        values.stride(0),
        stride_of(cache.key_scales),
        stride_of(cache.value_scales),
        **rotate_and_store_keywords(
            head_dim, num_heads, num_kv_heads, block_size, chip_of(query.device)
        ),
    )
