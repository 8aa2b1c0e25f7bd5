"""Duplicate blocks in all layers of a pool in one launch: one program per copy, half-layer and piece of a block."""

import torch
import triton
import triton.language as tl

from kernels.triton.chip import Chip, chip_of

PIECE = 1024


@triton.jit
def copy_blocks_kernel(
    kv_cache_ptr,
    src_ptr,
    dst_ptr,
    stride_layer,
    stride_kind,
    stride_block,
    BLOCK_NUMEL: tl.constexpr,
    PIECE_SIZE: tl.constexpr,
):
    copy = tl.program_id(0)
    half_layer = tl.program_id(1).to(tl.int64)
    base = kv_cache_ptr + half_layer // 2 * stride_layer + half_layer % 2 * stride_kind
    offsets = tl.program_id(2) * PIECE_SIZE + tl.arange(0, PIECE_SIZE)
    mask = offsets < BLOCK_NUMEL
    src = tl.load(src_ptr + copy)
    dst = tl.load(dst_ptr + copy)
    piece = tl.load(base + src * stride_block + offsets, mask=mask)
    tl.store(base + dst * stride_block + offsets, piece, mask=mask)


def copy_blocks_keywords(block_numel: int, chip: Chip) -> dict[str, int]:
    """What the kernel is compiled for: constants and warps."""
    return {
        "BLOCK_NUMEL": block_numel,
        "PIECE_SIZE": PIECE,
        "num_warps": chip.warps_for(PIECE),
        "enable_fp_fusion": True,
    }


def copy_blocks(kv_cache: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    """See `kernels.ops.CopyBlocks`."""
    if src.shape[0] == 0:
        return
    block_numel = kv_cache[0, 0, 0].numel()
    copy_blocks_kernel[(src.shape[0], 2 * kv_cache.shape[0], triton.cdiv(block_numel, PIECE))](
        kv_cache,
        src,
        dst,
        kv_cache.stride(0),
        kv_cache.stride(1),
        kv_cache.stride(2),
        **copy_blocks_keywords(block_numel, chip_of(kv_cache.device)),
    )
