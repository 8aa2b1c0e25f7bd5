"""What both attention kernels share: the arguments, where a tile of keys lies, and the online softmax.

A program's rows are the query heads that share one KV head, so that keys and values are read once for the whole group: row
`r` is head `r % GROUP` of the program's token `r // GROUP`. Scores are in units of log2 (exp2 is what the hardware has),
maxima, sums and results in float32 (Dao, FlashAttention-2, 2023; Milakov and Gimelshein, 2018).

What a model does not have is None as an argument, and its code is not compiled.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.attention_rules import AttentionRules
from kernels.eight_bits import LARGEST
from kernels.kv_pool import LayerCache
from kernels.triton.chip import Chip
from kernels.triton.eight_bits import SMALLEST, bits_of, stride_of, widen

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class AttentionShape:
    """The sizes a kernel is compiled for; `itemsize` is that of queries and products, `largest` that of stored numbers with scales.

    `has_limits`: with a window or a soft cap.
    """

    head_dim: int
    group: int
    block_size: int
    itemsize: int
    largest: float | None = None
    has_limits: bool = False

    @property
    def head_dim_padded(self) -> int:
        """tl.arange and tl.dot want a power of two, 16 at least."""
        return max(16, triton.next_power_of_2(self.head_dim))

    @property
    def has_scales(self) -> bool:
        """Whether keys and values have eight bits."""
        return self.largest is not None

    @property
    def row_bytes(self) -> int:
        """Of a key in the type that products are computed in."""
        return self.head_dim_padded * self.itemsize


@dataclass(frozen=True)
class Operands:
    """The tensors of one call, as `kernels.ops.PagedAttention` describes them, and where the answer goes."""

    query: torch.Tensor
    cache: LayerCache
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    out: torch.Tensor
    rules: AttentionRules

    @property
    def num_seqs(self) -> int:
        return self.seq_lens.shape[0]

    @property
    def num_heads(self) -> int:
        return self.query.shape[1]

    @property
    def num_kv_heads(self) -> int:
        return self.cache.keys.shape[1]

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(
            self.query.shape[2],
            self.num_heads // self.num_kv_heads,
            self.cache.keys.shape[2],
            self.query.element_size(),
            LARGEST.get(self.cache.keys.dtype),
            self.rules.has_limits,
        )

    def kernel_arguments(self) -> tuple:
        """The leading arguments of both kernels: pointers, the rules, strides."""
        cache, rules = self.cache, self.rules
        scale, cap = rules.scale * LOG2_E / (self.shape.largest or 1.0), rules.soft_cap
        return (
            self.query,
            bits_of(cache.keys),
            bits_of(cache.values),
            cache.key_scales,
            cache.value_scales,
            self.block_tables,
            self.seq_lens,
            self.query_start_loc,
            self.out,
            scale if cap is None else 2.0 * scale / cap,
            rules.window,
            None if cap is None else -2.0 * LOG2_E * cap,
            self.query.stride(0),
            self.query.stride(1),
            cache.keys.stride(0),
            cache.values.stride(0),
            stride_of(cache.key_scales),
            stride_of(cache.value_scales),
            self.block_tables.stride(0),
            self.out.stride(0),
            self.out.stride(1),
        )


def choose_precision(itemsize: int, chip: Chip) -> str:
    """How float32 is multiplied: by AMD's matrix cores as it is; on NVIDIA as three products of TF32, which keep 21 bits."""
    return "tf32x3" if itemsize == 4 and not chip.is_amd else "ieee"


@triton.jit
def find_block_ids(table_ptr, offs_n, end, BLOCK_SIZE: tl.constexpr):
    """The block of each key before `end`, in 64 bits: id times stride passes 2^31 in a large pool."""
    return tl.load(table_ptr + offs_n // BLOCK_SIZE, mask=offs_n < end, other=0).to(tl.int64)


@triton.jit
def load_rows(
    cache_ptr,
    block_id,
    stride_block,
    offs_n,
    exists,
    kv_head,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
):
    """Keys or values [BLOCK_N, HEAD_DIM_PADDED]; what does not exist is 0, whatever memory holds there."""
    offs_d = tl.arange(0, HEAD_DIM_PADDED)
    inside = (kv_head * BLOCK_SIZE + offs_n % BLOCK_SIZE) * HEAD_DIM
    offsets = (block_id * stride_block + inside)[:, None] + offs_d[None, :]
    if HEAD_DIM == HEAD_DIM_PADDED:
        mask = exists[:, None]
    else:
        mask = exists[:, None] & (offs_d[None, :] < HEAD_DIM)
    return tl.load(cache_ptr + offsets, mask=mask, other=0.0)


@triton.jit
def load_scales(
    scales_ptr, block_id, stride_block, offs_n, exists, kv_head, BLOCK_SIZE: tl.constexpr
):
    """Of the same keys or values [BLOCK_N]."""
    offsets = block_id * stride_block + kv_head * BLOCK_SIZE + offs_n % BLOCK_SIZE
    return tl.load(scales_ptr + offsets, mask=exists, other=0.0)


@triton.jit
def bend(x, cap_factor):
    """Capped scores in units of log2 but for a constant, which softmax does not see: cap_factor / (2 ** x + 1).

    With x = 2 log2(e) score / cap and cap_factor = -2 log2(e) cap, as cap tanh(s / cap) = cap - 2 cap / (e ** (2 s / cap) + 1). A power
    and a root are one instruction each, a division is ten on AMD, and the error is that of float32's last bits. An infinite power is meant.
    """
    root = tl.rsqrt(tl.exp2(x) + 1.0)
    return cap_factor * root * root


@triton.jit
def attend(
    q,
    acc,
    m_i,
    l_i,
    position,
    begin,
    end,
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
    window,
    cap_factor,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDENING: tl.constexpr,
    WIDEN_FIRST: tl.constexpr,
    TILE_SCALE: tl.constexpr,
):
    """Walk the keys begin to end with the rows q [BLOCK_M, HEAD_DIM_PADDED]; returns (acc, m_i, l_i).

    MASKED: a row sees keys up to its `position` only, with a `window` the last of these, and `end` may lie inside a tile. Otherwise
    every row sees all of them, and end - begin is a multiple of BLOCK_N.

    Of keys and values with scales the products take the stored numbers: a key's scale goes into its column of scores, a value's into its
    column of weights. `scale_log2`, a number or one for each row, makes up for LARGEST in the scores; in the result the caller does. With
    TILE_SCALE weights are multiples of the largest scale in the tile, so that float16 has bits for values of any size.
    """
    offs_n = begin + tl.arange(0, BLOCK_N)
    block_id = find_block_ids(table_ptr, offs_n, end, BLOCK_SIZE)
    for start_n in range(begin, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        exists = offs_n < end
        # Found one tile ahead: a load whose address was loaded in the same turn costs the pipeliner half its stages.
        next_block_id = find_block_ids(table_ptr, offs_n + BLOCK_N, end, BLOCK_SIZE)
        k = load_rows(
            key_cache_ptr,
            block_id,
            stride_key_block,
            offs_n,
            exists,
            kv_head,
            BLOCK_SIZE,
            HEAD_DIM,
            HEAD_DIM_PADDED,
        )
        scores = tl.dot(
            q, tl.trans(widen(k, q.dtype, WIDENING, WIDEN_FIRST)), input_precision=PRECISION
        )
        if key_scales_ptr is None:
            scores *= scale_log2
        else:
            key_scales = load_scales(
                key_scales_ptr, block_id, stride_key_scales, offs_n, exists, kv_head, BLOCK_SIZE
            )
            scores *= key_scales[None, :] * scale_log2
        if cap_factor is not None:
            scores = bend(scores, cap_factor)
        if MASKED:
            visible = exists[None, :] & (offs_n[None, :] <= position[:, None])
            if window is not None:
                visible &= offs_n[None, :] > position[:, None] - window
            scores = tl.where(visible, scores, float("-inf"))
            m_new = tl.maximum(m_i, tl.max(scores, 1))
            # A row that has seen no key yet keeps -inf as its maximum; -inf - -inf must not happen.
            m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        else:
            m_new = tl.maximum(m_i, tl.max(scores, 1))
            m_safe = m_new
        alpha = tl.exp2(m_i - m_safe)
        p = tl.exp2(scores - m_safe[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = load_rows(
            value_cache_ptr,
            block_id,
            stride_value_block,
            offs_n,
            exists,
            kv_head,
            BLOCK_SIZE,
            HEAD_DIM,
            HEAD_DIM_PADDED,
        )
        v = widen(v, q.dtype, WIDENING, WIDEN_FIRST)
        if value_scales_ptr is None:
            acc = tl.dot(p.to(q.dtype), v, acc, input_precision=PRECISION)
        else:
            value_scales = load_scales(
                value_scales_ptr, block_id, stride_value_scales, offs_n, exists, kv_head, BLOCK_SIZE
            )
            if TILE_SCALE:
                largest = tl.maximum(tl.max(value_scales, 0), SMALLEST)
                weights = p * (value_scales * (1.0 / largest))[None, :]
                acc += tl.dot(weights.to(q.dtype), v, input_precision=PRECISION) * largest
            else:
                weights = p * value_scales[None, :]
                acc = tl.dot(weights.to(q.dtype), v, acc, input_precision=PRECISION)
        m_i = m_new
        block_id = next_block_id
    return acc, m_i, l_i
