"""Attention of sequences with one query token: memory-bound, so every key is read once and many reads are under way.

A program owns one sequence, one KV head and one of `num_splits` runs of keys; its rows are the heads of the group. Where
sequences alone would leave cores idle, their keys are split and a second kernel merges the partial results
(Flash-Decoding, Dao et al. 2023). How many splits is decided from the batch size; how long they are, on the device
from the sequence's length: nothing is read on the host, so the launch can live in a CUDA graph. With a window the first tile begins at
the first key in it, and splits divide the window.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.triton.attention_tile import AttentionShape, Operands, attend, choose_precision
from kernels.triton.chip import Chip
from kernels.triton.eight_bits import SMALLEST
from kernels.triton.tilings import decode_slots, decode_tiling

MAX_SPLITS = 64
MIN_SPLIT = tl.constexpr(256)


@triton.jit
def first_visible(seq_len, window):
    """The first key that a sequence's last token sees."""
    first = 0
    if window is not None:
        first = tl.maximum(seq_len - window, 0)
    return first


@triton.jit
def split_length(num_keys, num_splits, BLOCK_N: tl.constexpr):
    """Keys of one split: whole tiles, and enough of them to be worth a merge."""
    return tl.maximum(tl.cdiv(tl.cdiv(num_keys, num_splits), BLOCK_N) * BLOCK_N, MIN_SPLIT)


@triton.jit(do_not_specialize=["window", "stride_table", "num_splits"])
def decode_attention_kernel(
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    key_scales_ptr,
    value_scales_ptr,
    block_tables_ptr,
    seq_lens_ptr,
    query_start_loc_ptr,
    out_ptr,
    scale_log2,
    window,
    cap_factor,
    stride_query_token,
    stride_query_head,
    stride_key_block,
    stride_value_block,
    stride_key_scales,
    stride_value_scales,
    stride_table,
    stride_out_token,
    stride_out_head,
    partial_ptr,
    partial_max_ptr,
    partial_sum_ptr,
    num_splits,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    LARGEST: tl.constexpr,
    WIDENING: tl.constexpr,
):
    sequence = tl.program_id(0) // NUM_KV_HEADS
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    token = tl.load(query_start_loc_ptr + sequence)
    if tl.load(query_start_loc_ptr + sequence + 1) - token != 1:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    begin = first_visible(seq_len, window)
    end = seq_len
    if SPLIT:
        length = split_length(seq_len - begin, num_splits, BLOCK_N)
        begin += tl.program_id(1) * length
        end = tl.minimum(begin + length, seq_len)
        if begin >= end:
            return

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD_DIM_PADDED)
    head = kv_head * GROUP + offs_m
    row_mask = (offs_m[:, None] < GROUP) & (offs_d[None, :] < HEAD_DIM)
    query_ptr += token.to(tl.int64) * stride_query_token
    q = tl.load(
        query_ptr + head[:, None] * stride_query_head + offs_d[None, :], mask=row_mask, other=0.0
    )
    if LARGEST is not None and q.dtype != tl.float32:
        # Eight bits become float16 with the fewest instructions; a row's largest number becomes 1, so none is too large for it.
        peak = tl.maximum(tl.max(tl.abs(q.to(tl.float32)), 1), SMALLEST)
        q = (q.to(tl.float32) / peak[:, None]).to(tl.float16)
        scale_log2 = (peak * scale_log2)[:, None]
    acc, m_i, l_i = attend(
        q,
        tl.zeros([BLOCK_M, HEAD_DIM_PADDED], dtype=tl.float32),
        tl.full([BLOCK_M], float("-inf"), dtype=tl.float32),
        tl.zeros([BLOCK_M], dtype=tl.float32),
        tl.zeros([BLOCK_M], dtype=tl.int32) + (seq_len - 1),
        begin,
        end,
        key_cache_ptr,
        value_cache_ptr,
        key_scales_ptr,
        value_scales_ptr,
        block_tables_ptr + sequence.to(tl.int64) * stride_table,
        stride_key_block,
        stride_value_block,
        stride_key_scales,
        stride_value_scales,
        kv_head,
        scale_log2,
        None,
        cap_factor,
        HEAD_DIM,
        HEAD_DIM_PADDED,
        BLOCK_SIZE,
        BLOCK_N,
        MASKED=True,
        PRECISION=PRECISION,
        WIDENING=WIDENING,
        WIDEN_FIRST=True,
        TILE_SCALE=True,
    )
    if LARGEST is not None:
        acc /= LARGEST
    if SPLIT:
        row = ((sequence * NUM_KV_HEADS * GROUP + head) * num_splits + tl.program_id(1)).to(
            tl.int64
        )
        tl.store(partial_max_ptr + row, m_i, mask=offs_m < GROUP)
        tl.store(partial_sum_ptr + row, l_i, mask=offs_m < GROUP)
        tl.store(partial_ptr + row[:, None] * HEAD_DIM + offs_d[None, :], acc, mask=row_mask)
    else:
        out = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]
        out_ptr += token.to(tl.int64) * stride_out_token
        out_offsets = head[:, None] * stride_out_head + offs_d[None, :]
        tl.store(out_ptr + out_offsets, out.to(out_ptr.dtype.element_ty), mask=row_mask)


@triton.jit(do_not_specialize=["window", "num_splits"])
def merge_splits_kernel(
    partial_ptr,
    partial_max_ptr,
    partial_sum_ptr,
    seq_lens_ptr,
    query_start_loc_ptr,
    out_ptr,
    window,
    stride_out_token,
    stride_out_head,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
):
    """out = sum over splits of 2^(m - max m) acc, over the same sum of l; one program per sequence and head."""
    sequence = tl.program_id(0) // NUM_HEADS
    head = tl.program_id(0) % NUM_HEADS
    token = tl.load(query_start_loc_ptr + sequence)
    if tl.load(query_start_loc_ptr + sequence + 1) - token != 1:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    num_keys = seq_len - first_visible(seq_len, window)
    splits = tl.arange(0, SPLITS_PADDED)
    offs_d = tl.arange(0, HEAD_DIM_PADDED)
    exists = splits < tl.cdiv(num_keys, split_length(num_keys, num_splits, BLOCK_N))
    rows = (tl.program_id(0) * num_splits + splits).to(tl.int64)
    m = tl.load(partial_max_ptr + rows, mask=exists, other=float("-inf"))
    peak = tl.max(m, 0)
    weight = tl.exp2(m - tl.where(peak == float("-inf"), 0.0, peak))  # without keys all are -inf
    total = tl.sum(weight * tl.load(partial_sum_ptr + rows, mask=exists, other=0.0), 0)
    acc = tl.load(
        partial_ptr + rows[:, None] * HEAD_DIM + offs_d[None, :],
        mask=exists[:, None] & (offs_d[None, :] < HEAD_DIM),
        other=0.0,
    )
    out = tl.sum(acc * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    out_ptr += token.to(tl.int64) * stride_out_token + head * stride_out_head
    tl.store(out_ptr + offs_d, out.to(out_ptr.dtype.element_ty), mask=offs_d < HEAD_DIM)


def choose_num_splits(num_programs: int, num_slots: int) -> int:
    """Splits of each sequence that fill the chip's slots once; 1 where the batch alone does that."""
    return max(1, min(MAX_SPLITS, num_slots // num_programs))


def decode_keywords(
    shape: AttentionShape, num_kv_heads: int, num_splits: int, chip: Chip
) -> dict[str, Any]:
    """What the decode kernel is compiled for: constants, warps and stages."""
    tiling = decode_tiling(shape, chip)
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "HEAD_DIM_PADDED": shape.head_dim_padded,
        "BLOCK_SIZE": shape.block_size,
        "BLOCK_M": tiling.block_m,
        "BLOCK_N": tiling.block_n,
        "SPLIT": num_splits > 1,
        "PRECISION": choose_precision(shape.itemsize, chip),
        "LARGEST": shape.largest,
        "WIDENING": chip.widening,
        "num_warps": tiling.num_warps,
        "num_stages": tiling.num_stages,
        "enable_fp_fusion": True,
    }


def merge_keywords(shape: AttentionShape, num_heads: int, chip: Chip) -> dict[str, Any]:
    """The same of the merging kernel."""
    return {
        "NUM_HEADS": num_heads,
        "HEAD_DIM": shape.head_dim,
        "HEAD_DIM_PADDED": shape.head_dim_padded,
        "BLOCK_N": decode_tiling(shape, chip).block_n,
        "SPLITS_PADDED": MAX_SPLITS,
        "num_warps": 4,
        "enable_fp_fusion": True,
    }


def decode_attention(operands: Operands, chip: Chip) -> None:
    """Fill the rows of `out` whose sequence has one query token; the others stay as they are."""
    shape, num_programs = operands.shape, operands.num_seqs * operands.num_kv_heads
    num_splits = choose_num_splits(num_programs, decode_slots(shape, chip))
    partials = _partials(operands, num_splits)
    decode_attention_kernel[(num_programs, num_splits)](
        *operands.kernel_arguments(),
        *partials,
        num_splits,
        **decode_keywords(shape, operands.num_kv_heads, num_splits, chip),
    )
    if num_splits > 1:
        merge_splits_kernel[(operands.num_seqs * operands.num_heads,)](
            *partials,
            operands.seq_lens,
            operands.query_start_loc,
            operands.out,
            operands.rules.window,
            operands.out.stride(0),
            operands.out.stride(1),
            num_splits,
            **merge_keywords(shape, operands.num_heads, chip),
        )


def _partials(operands: Operands, num_splits: int) -> tuple[torch.Tensor, ...]:
    """Memory for unfinished rows, their maxima and sums, by sequence, head and split; none without a split."""
    num_rows = operands.num_seqs * operands.num_heads * num_splits if num_splits > 1 else 0
    return tuple(
        torch.empty(size, dtype=torch.float32, device=operands.query.device)
        for size in (num_rows * operands.shape.head_dim, num_rows, num_rows)
    )
