"""Duplicate blocks in all layers of a pool in one launch: one program per copy, half-layer and piece of a block."""

import torch
import triton
import triton.language as tl

from kernels.triton.chip import Chip, chip_of

PIECE_BYTES = 2048
PIECE_WARPS = 4
"""16 bytes for each thread of them."""


@triton.jit
def copy_blocks_kernel(
    memory_ptr,
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
    base = memory_ptr + half_layer // 2 * stride_layer + half_layer % 2 * stride_kind
    offsets = tl.program_id(2) * PIECE_SIZE + tl.arange(0, PIECE_SIZE)
    mask = offsets < BLOCK_NUMEL
    src = tl.load(src_ptr + copy)
    dst = tl.load(dst_ptr + copy)
    piece = tl.load(base + src * stride_block + offsets, mask=mask)
    tl.store(base + dst * stride_block + offsets, piece, mask=mask)


def copy_blocks_keywords(block_numel: int, itemsize: int, chip: Chip) -> dict[str, int]:
    """What the kernel is compiled for: constants and warps."""
    return {
        "BLOCK_NUMEL": block_numel,
        "PIECE_SIZE": PIECE_BYTES // itemsize,
        "num_warps": PIECE_WARPS // 2 if chip.is_amd else PIECE_WARPS,
        "enable_fp_fusion": True,
    }


def copy_blocks(memory: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    """See `kernels.ops.CopyBlocks`."""
    if src.shape[0] == 0:
        return
    block_numel, itemsize = memory[0, 0, 0].numel(), memory.element_size()
    keywords = copy_blocks_keywords(block_numel, itemsize, chip_of(memory.device))
    num_pieces = triton.cdiv(block_numel, keywords["PIECE_SIZE"])
    copy_blocks_kernel[(src.shape[0], 2 * memory.shape[0], num_pieces)](
        memory, src, dst, memory.stride(0), memory.stride(1), memory.stride(2), **keywords
    )
