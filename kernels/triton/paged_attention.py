"""Causal attention over paged keys and values for a mixed batch of prefill chunks and decodes, in one kernel.

A program owns BLOCK_Q tokens of one sequence times the query heads that share one KV head: BLOCK_Q * GROUP_PADDED rows,
so that keys and values are read once for the whole group. It walks the keys in tiles of BLOCK_N, each key found
through the block table, with an online softmax in float32 (Dao et al., FlashAttention-2, 2023).

Sequence `s` owns the program ids start[s] // BLOCK_Q + s and following, which always are enough for its tokens; a
program finds its sequence by bisection and those left over do nothing. No length is read on the host.
"""

import torch
import triton
import triton.language as tl

_LOG2_E = 1.4426950408889634


@triton.jit
def _find_sequence(query_start_loc_ptr, program, num_seqs, BLOCK_Q: tl.constexpr):
    """The last sequence whose first program is not behind `program`."""
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        first_program = tl.load(query_start_loc_ptr + middle) // BLOCK_Q + middle
        if first_program <= program:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["num_seqs", "stride_table"])
def _paged_attention_kernel(
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_tables_ptr,
    seq_lens_ptr,
    query_start_loc_ptr,
    out_ptr,
    num_seqs,
    scale_log2,
    stride_query_token,
    stride_query_head,
    stride_key_block,
    stride_value_block,
    stride_table,
    stride_out_token,
    stride_out_head,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    program = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = _find_sequence(query_start_loc_ptr, program, num_seqs, BLOCK_Q)
    start = tl.load(query_start_loc_ptr + sequence)
    query_len = tl.load(query_start_loc_ptr + sequence + 1) - start
    first = (program - start // BLOCK_Q - sequence) * BLOCK_Q
    if first >= query_len:
        return

    offs_m = tl.arange(0, BLOCK_Q * GROUP_PADDED)
    offs_d = tl.arange(0, HEAD_DIM_PADDED)
    token = first + offs_m // GROUP_PADDED
    group_head = offs_m % GROUP_PADDED
    rows_exist = (token < query_len) & (group_head < GROUP)
    row_mask = rows_exist[:, None] & (offs_d[None, :] < HEAD_DIM)
    head = (kv_head * GROUP + group_head)[:, None]
    token_index = (start + token).to(tl.int64)[:, None]
    query_offsets = token_index * stride_query_token + head * stride_query_head + offs_d[None, :]
    q = tl.load(query_ptr + query_offsets, mask=row_mask, other=0.0)

    seq_len = tl.load(seq_lens_ptr + sequence)
    position = seq_len - query_len + token
    num_keys = seq_len - query_len + tl.minimum(first + BLOCK_Q, query_len)
    table_ptr = block_tables_ptr + sequence.to(tl.int64) * stride_table

    m_i = tl.full([BLOCK_Q * GROUP_PADDED], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_Q * GROUP_PADDED], dtype=tl.float32)
    acc = tl.zeros([BLOCK_Q * GROUP_PADDED, HEAD_DIM_PADDED], dtype=tl.float32)
    for start_n in range(0, num_keys, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        keys_exist = offs_n < num_keys
        block_id = tl.load(table_ptr + offs_n // BLOCK_SIZE, mask=keys_exist, other=0).to(tl.int64)
        inside = (kv_head * BLOCK_SIZE + offs_n % BLOCK_SIZE) * HEAD_DIM
        key_offsets = (block_id * stride_key_block + inside)[:, None] + offs_d[None, :]
        value_offsets = (block_id * stride_value_block + inside)[:, None] + offs_d[None, :]
        tile_mask = keys_exist[:, None] & (offs_d[None, :] < HEAD_DIM)

        k = tl.load(key_cache_ptr + key_offsets, mask=tile_mask, other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        visible = keys_exist[None, :] & (offs_n[None, :] <= position[:, None])
        scores = tl.where(visible, scores, float("-inf"))

        m_new = tl.maximum(m_i, tl.max(scores, 1))
        # A row that has seen no key yet keeps -inf as its maximum; -inf - -inf must not happen.
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp2(m_i - m_safe)
        p = tl.exp2(scores - m_safe[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(value_cache_ptr + value_offsets, mask=tile_mask, other=0.0).to(q.dtype)
        acc = acc * alpha[:, None] + tl.dot(p.to(q.dtype), v, input_precision="ieee")
        m_i = m_new

    out = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]
    out_offsets = token_index * stride_out_token + head * stride_out_head + offs_d[None, :]
    tl.store(out_ptr + out_offsets, out.to(out_ptr.dtype.element_ty), mask=row_mask)


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
    """See `kernels.ops.PagedAttention`."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, block_size = key_cache.shape[1:3]
    num_seqs = seq_lens.shape[0]
    out = query.new_empty((num_tokens, num_heads, head_dim))
    if num_tokens == 0:
        return out
    group = num_heads // num_kv_heads
    block_q = choose_block_q(max_query_len, triton.next_power_of_2(group))
    grid = (num_tokens // block_q + num_seqs, num_kv_heads)
    _paged_attention_kernel[grid](
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        query_start_loc,
        out,
        num_seqs,
        scale * _LOG2_E,
        query.stride(0),
        query.stride(1),
        key_cache.stride(0),
        value_cache.stride(0),
        block_tables.stride(0),
        out.stride(0),
        out.stride(1),
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=max(16, triton.next_power_of_2(head_dim)),
        GROUP=group,
        GROUP_PADDED=triton.next_power_of_2(group),
        BLOCK_SIZE=block_size,
        BLOCK_Q=block_q,
        BLOCK_N=choose_block_n(head_dim * query.element_size()),
        enable_fp_fusion=True,
    )
    return out


def choose_block_q(max_query_len: int, group_padded: int) -> int:
    """Tokens of one program: 16 rows when every query is short, since tl.dot takes no fewer, else 64."""
    rows = 16 if max_query_len * group_padded <= 16 else 64
    return max(1, rows // group_padded)


def choose_block_n(row_bytes: int) -> int:
    """Keys of one tile: 64, fewer where rows are long, so that a tile takes no more than 16 KiB."""
    return max(16, min(64, 16384 // triton.next_power_of_2(row_bytes)))
