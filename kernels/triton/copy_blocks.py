"""Duplicate blocks in all layers of a pool at once: one program per copy, half-layer and piece of a block."""

import torch
import triton
import triton.language as tl

_PIECE = 1024


@triton.jit
def _copy_blocks_kernel(
    kv_cache_ptr,
    src_ptr,
    dst_ptr,
    stride_layer,
    stride_kind,
    stride_block,
    BLOCK_NUMEL: tl.constexpr,
    PIECE: tl.constexpr,
):
    copy = tl.program_id(0)
    half_layer = tl.program_id(1).to(tl.int64)
    base = kv_cache_ptr + half_layer // 2 * stride_layer + half_layer % 2 * stride_kind
    offsets = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    mask = offsets < BLOCK_NUMEL
    src = tl.load(src_ptr + copy)
    dst = tl.load(dst_ptr + copy)
    piece = tl.load(base + src * stride_block + offsets, mask=mask)
    tl.store(base + dst * stride_block + offsets, piece, mask=mask)


def copy_blocks(kv_cache: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    """See `kernels.ops.CopyBlocks`."""
    if src.shape[0] == 0:
        return
    block_numel = kv_cache[0, 0, 0].numel()
    grid = (src.shape[0], 2 * kv_cache.shape[0], triton.cdiv(block_numel, _PIECE))
    _copy_blocks_kernel[grid](
        kv_cache,
        src,
        dst,
        kv_cache.stride(0),
        kv_cache.stride(1),
        kv_cache.stride(2),
        BLOCK_NUMEL=block_numel,
        PIECE=_PIECE,
        enable_fp_fusion=True,
    )
