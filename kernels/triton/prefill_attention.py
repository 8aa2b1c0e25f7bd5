"""Attention of sequences with several query tokens: prompts, chunks of them, and what follows a cached prefix.

A program owns BLOCK_M rows of one sequence and one KV head: as many whole tokens as fit, times the heads of the group.
Packing tokens and heads into one dimension wastes less than GROUP rows whatever the group's size. Keys that all
rows see are walked without masks, those behind them, about one tile, with the causal one, and with a window those before them, from the
first that a row sees, with both.

Sequence `s` owns the tiles start[s] // BLOCK_Q + s and following, which always are enough for its tokens; a program finds
its sequence by bisection and those left over do nothing. No length is read on the host. A sequence's last
tile, which sees most keys, comes first, so that the longest work does not start last.
"""

from typing import Any

import triton
import triton.language as tl

from kernels.triton.attention_tile import AttentionShape, Operands, attend, choose_precision
from kernels.triton.chip import Chip
from kernels.triton.tilings import prefill_tiling


@triton.jit
def find_sequence(query_start_loc_ptr, tile, num_seqs, BLOCK_Q: tl.constexpr):
    """The last sequence whose first tile is not behind `tile`."""
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        first_tile = tl.load(query_start_loc_ptr + middle) // BLOCK_Q + middle
        if first_tile <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["window", "stride_table", "num_seqs"])
def prefill_attention_kernel(
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
    num_seqs,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    LARGEST: tl.constexpr,
    WIDENING: tl.constexpr,
    WIDEN_FIRST: tl.constexpr,
):
    tile = tl.program_id(0) // NUM_KV_HEADS
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    sequence = find_sequence(query_start_loc_ptr, tile, num_seqs, BLOCK_Q)
    start = tl.load(query_start_loc_ptr + sequence)
    query_len = tl.load(query_start_loc_ptr + sequence + 1) - start
    own_tile = tile - start // BLOCK_Q - sequence
    num_tiles = tl.cdiv(query_len, BLOCK_Q)
    if (query_len < 2) | (own_tile >= num_tiles):
        return
    first = (num_tiles - 1 - own_tile) * BLOCK_Q

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD_DIM_PADDED)
    token = first + offs_m // GROUP
    rows_exist = (offs_m < BLOCK_Q * GROUP) & (token < query_len)
    row_mask = rows_exist[:, None] & (offs_d[None, :] < HEAD_DIM)
    head = (kv_head * GROUP + offs_m % GROUP)[:, None]
    token_index = (start + token).to(tl.int64)[:, None]
    query_offsets = token_index * stride_query_token + head * stride_query_head + offs_d[None, :]
    q = tl.load(query_ptr + query_offsets, mask=row_mask, other=0.0)

    context = tl.load(seq_lens_ptr + sequence) - query_len
    end = context + tl.minimum(first + BLOCK_Q, query_len)
    begin = 0
    all_begin = 0
    if window is not None:
        begin = tl.maximum(context + first + 1 - window, 0)
        all_begin = begin + tl.cdiv(tl.maximum(end - window, 0) - begin, BLOCK_N) * BLOCK_N
        all_begin = tl.minimum(all_begin, end)
    all_end = all_begin + tl.maximum(context + first + 1 - all_begin, 0) // BLOCK_N * BLOCK_N
    acc = tl.zeros([BLOCK_M, HEAD_DIM_PADDED], dtype=tl.float32)
    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    table_ptr = block_tables_ptr + sequence.to(tl.int64) * stride_table
    for pass_index in tl.static_range(1 if window is None else 0, 3):
        acc, m_i, l_i = attend(
            q,
            acc,
            m_i,
            l_i,
            context + token,
            begin if pass_index == 0 else all_begin if pass_index == 1 else all_end,
            all_begin if pass_index == 0 else all_end if pass_index == 1 else end,
            key_cache_ptr,
            value_cache_ptr,
            key_scales_ptr,
            value_scales_ptr,
            table_ptr,
            stride_key_block,
            stride_value_block,
            stride_key_scales,
            stride_value_scales,
            kv_head,
            scale_log2,
            window if pass_index == 0 else None,
            cap_factor,
            HEAD_DIM,
            HEAD_DIM_PADDED,
            BLOCK_SIZE,
            BLOCK_N,
            MASKED=pass_index != 1,
            PRECISION=PRECISION,
            WIDENING=WIDENING,
            WIDEN_FIRST=WIDEN_FIRST,
            TILE_SCALE=False,
        )

    if LARGEST is not None:
        acc /= LARGEST
    out = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]
    out_offsets = token_index * stride_out_token + head * stride_out_head + offs_d[None, :]
    tl.store(out_ptr + out_offsets, out.to(out_ptr.dtype.element_ty), mask=row_mask)


def prefill_keywords(shape: AttentionShape, num_kv_heads: int, chip: Chip) -> dict[str, Any]:
    """What the kernel is compiled for: constants, warps and stages."""
    tiling = prefill_tiling(shape, chip)
    block_m = max(tiling.block_m, triton.next_power_of_2(shape.group))
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "HEAD_DIM_PADDED": shape.head_dim_padded,
        "BLOCK_SIZE": shape.block_size,
        "BLOCK_M": block_m,
        "BLOCK_Q": block_m // shape.group,
        "BLOCK_N": tiling.block_n,
        "PRECISION": choose_precision(shape.itemsize, chip),
        "LARGEST": shape.largest,
        "WIDENING": chip.widening,
        "WIDEN_FIRST": not chip.multiplies_from_memory,
        "num_warps": tiling.num_warps,
        "num_stages": tiling.num_stages,
        "enable_fp_fusion": True,
    }


def prefill_attention(operands: Operands, chip: Chip) -> None:
    """Fill the rows of `out` whose sequence has two query tokens or more; the others stay as they are."""
    keywords = prefill_keywords(operands.shape, operands.num_kv_heads, chip)
    num_tiles = operands.query.shape[0] // keywords["BLOCK_Q"] + operands.num_seqs
    prefill_attention_kernel[(num_tiles * operands.num_kv_heads,)](
        *operands.kernel_arguments(), operands.num_seqs, **keywords
    )
