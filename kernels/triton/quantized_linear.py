"""x W^T with weights of eight bits: few rows by a kernel that reads each weight once, many by torch, from weights widened piece by piece.

A program owns BLOCK_OUT outputs, BLOCK_TOKENS rows and one of `num_splits` runs of inputs. Weights are the left factor of the product, whose
numbers go from where they are widened straight to the tensor cores; rows, which have the type of the products, the right one.
Where outputs alone would leave cores idle, inputs are split, and a second kernel adds the parts in order. How, depends on the
weight and not on how many rows there are: a row's result does not depend on its neighbours.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernels.eight_bits import LARGEST
from kernels.triton.attention_tile import choose_precision
from kernels.triton.chip import Chip, chip_of
from kernels.triton.eight_bits import bits_of, widen

MOST_ROWS = 256
"""From where on torch is faster: arithmetic is the limit then, and weights are widened once instead of for every tile of rows."""
PIECE_BYTES = 32 << 20
"""Of weights that torch is given at a time: they stay in the L2 cache."""
BLOCK_OUT = 64
MAX_SPLITS = 16
SPLIT_UNIT = 512
"""Inputs of the shortest split, and what every split's length is a multiple of."""
MERGE_PIECE = 1024


@dataclass(frozen=True)
class LinearShape:
    """The sizes a kernel is compiled for; `itemsize` is that of rows and products, `largest` that of stored numbers."""

    size_in: int
    size_out: int
    num_rows: int
    itemsize: int
    largest: float


@triton.jit
def finish(total, scales_ptr, bias_ptr, offs_out, exists, LARGEST: tl.constexpr):
    """Of sums [..., outputs] the results."""
    total *= (tl.load(scales_ptr + offs_out, mask=exists, other=0.0) / LARGEST)[None, :]
    if bias_ptr is not None:
        total += tl.load(bias_ptr + offs_out, mask=exists, other=0.0).to(tl.float32)[None, :]
    return total


@triton.jit(do_not_specialize=["num_rows"])
def quantized_linear_kernel(
    x_ptr,
    weight_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    partial_ptr,
    stride_x,
    num_rows,
    SIZE_IN: tl.constexpr,
    SIZE_OUT: tl.constexpr,
    SPLIT_IN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    LARGEST: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDENING: tl.constexpr,
    WIDEN_FIRST: tl.constexpr,
):
    # Tiles of rows are neighbours: the weights they share come from memory once.
    num_row_tiles = tl.cdiv(num_rows, BLOCK_ROWS)
    offs_row = tl.program_id(0) % num_row_tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    offs_out = tl.program_id(0) // num_row_tiles * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    row_exists = offs_row < num_rows
    out_exists = offs_out < SIZE_OUT
    weight_ptrs = weight_ptr + offs_out.to(tl.int64)[:, None] * SIZE_IN
    x_ptrs = x_ptr + offs_row.to(tl.int64)[:, None] * stride_x
    begin = tl.program_id(1) * SPLIT_IN
    acc = tl.zeros([BLOCK_OUT, BLOCK_ROWS], dtype=tl.float32)
    for start in range(begin, tl.minimum(begin + SPLIT_IN, SIZE_IN), BLOCK_IN):
        offs_in = start + tl.arange(0, BLOCK_IN)[None, :]
        in_exists = offs_in < SIZE_IN
        weight = tl.load(weight_ptrs + offs_in, mask=out_exists[:, None] & in_exists, other=0.0)
        x = tl.load(x_ptrs + offs_in, mask=row_exists[:, None] & in_exists, other=0.0)
        wide = widen(weight, x.dtype, WIDENING, WIDEN_FIRST)
        acc = tl.dot(wide, tl.trans(x), acc, input_precision=PRECISION)
    total = tl.trans(acc)
    mask = row_exists[:, None] & out_exists[None, :]
    offsets = offs_row.to(tl.int64)[:, None] * SIZE_OUT + offs_out[None, :]
    if SPLIT_IN < SIZE_IN:
        partial_ptr += tl.program_id(1).to(tl.int64) * num_rows * SIZE_OUT
        tl.store(partial_ptr + offsets, total, mask=mask)
    else:
        out = finish(total, scales_ptr, bias_ptr, offs_out, out_exists, LARGEST)
        tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def merge_inputs_kernel(
    scales_ptr,
    bias_ptr,
    out_ptr,
    partial_ptr,
    num_rows,
    SIZE_OUT: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    PIECE_SIZE: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """One program for a row and a piece of the outputs."""
    NUM_PIECES: tl.constexpr = (SIZE_OUT + PIECE_SIZE - 1) // PIECE_SIZE
    row = (tl.program_id(0) // NUM_PIECES).to(tl.int64)
    offs_out = tl.program_id(0) % NUM_PIECES * PIECE_SIZE + tl.arange(0, PIECE_SIZE)
    exists = offs_out < SIZE_OUT
    total = tl.zeros([PIECE_SIZE], dtype=tl.float32)
    partial_ptr += row * SIZE_OUT
    for split in tl.static_range(NUM_SPLITS):
        part_ptr = partial_ptr + tl.cast(split, tl.int64) * num_rows * SIZE_OUT
        total += tl.load(part_ptr + offs_out, mask=exists, other=0.0)
    out = finish(total[None, :], scales_ptr, bias_ptr, offs_out, exists, LARGEST)
    out_ptrs = out_ptr + row * SIZE_OUT + offs_out[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=exists[None, :])


def choose_split(size_in: int, size_out: int, chip: Chip) -> int:
    """Inputs of one split: as many splits as fill the chip twice, of whole units."""
    num_tiles = triton.cdiv(size_out, BLOCK_OUT)
    num_splits = max(1, min(MAX_SPLITS, 2 * chip.num_cores // num_tiles, size_in // SPLIT_UNIT))
    return triton.cdiv(triton.cdiv(size_in, num_splits), SPLIT_UNIT) * SPLIT_UNIT


def quantized_linear_keywords(shape: LinearShape, chip: Chip) -> dict[str, Any]:
    """What the kernel is compiled for: constants, warps and stages."""
    block_rows = max(16, min(64, triton.next_power_of_2(shape.num_rows)))
    is_wide = shape.itemsize == 4
    return {
        "SIZE_IN": shape.size_in,
        "SIZE_OUT": shape.size_out,
        "SPLIT_IN": choose_split(shape.size_in, shape.size_out, chip),
        "BLOCK_ROWS": min(32, block_rows) if is_wide else block_rows,
        "BLOCK_OUT": BLOCK_OUT,
        "BLOCK_IN": 32 if is_wide else (256 if block_rows == 16 and not chip.is_amd else 128),
        "LARGEST": shape.largest,
        "PRECISION": choose_precision(shape.itemsize, chip),
        "WIDENING": chip.widening,
        "WIDEN_FIRST": not chip.multiplies_from_memory,
        "num_warps": 4,
        "num_stages": 2 if chip.is_amd else 4,
        "enable_fp_fusion": True,
    }


def merge_inputs_keywords(shape: LinearShape, num_splits: int, chip: Chip) -> dict[str, Any]:
    """The same of the kernel that adds the splits."""
    return {
        "SIZE_OUT": shape.size_out,
        "NUM_SPLITS": num_splits,
        "PIECE_SIZE": MERGE_PIECE,
        "LARGEST": shape.largest,
        "num_warps": chip.warps_for(MERGE_PIECE),
        "enable_fp_fusion": True,
    }


def quantized_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """See `kernels.ops.QuantizedLinear`."""
    num_rows, (size_out, size_in) = x.shape[0], weight.shape
    out = x.new_empty((num_rows, size_out))
    if num_rows > MOST_ROWS:
        _by_torch(out, x, weight, scales, bias)
    elif num_rows:
        shape = LinearShape(size_in, size_out, num_rows, x.element_size(), LARGEST[weight.dtype])
        _by_kernel(out, x, bits_of(weight), scales, bias, shape)
    return out


def _by_kernel(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    shape: LinearShape,
) -> None:
    chip = chip_of(x.device)
    keywords = quantized_linear_keywords(shape, chip)
    num_splits = triton.cdiv(shape.size_in, keywords["SPLIT_IN"])
    num_parts = num_splits if num_splits > 1 else 0
    partial = torch.empty(
        (num_parts, shape.num_rows, shape.size_out), dtype=torch.float32, device=x.device
    )
    num_tiles = triton.cdiv(shape.num_rows, keywords["BLOCK_ROWS"]) * triton.cdiv(
        shape.size_out, BLOCK_OUT
    )
    quantized_linear_kernel[(num_tiles, num_splits)](
        x, weight, scales, bias, out, partial, x.stride(0), shape.num_rows, **keywords
    )
    if num_splits > 1:
        num_pieces = shape.num_rows * triton.cdiv(shape.size_out, MERGE_PIECE)
        merge_inputs_kernel[(num_pieces,)](
            scales,
            bias,
            out,
            partial,
            shape.num_rows,
            **merge_inputs_keywords(shape, num_splits, chip),
        )


def _by_torch(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    num_outputs = max(1, PIECE_BYTES // (weight.shape[1] * x.element_size()))
    for begin in range(0, len(weight), num_outputs):
        piece = slice(begin, begin + num_outputs)
        factors = (scales[piece] / LARGEST[weight.dtype])[:, None]
        dense = weight[piece].to(x.dtype)
        torch.mul(dense, factors, out=dense)  # in float32, rounded once
        out[:, piece] = F.linear(x, dense, None if bias is None else bias[piece])
