"""The GPU backend: every operation is a Triton kernel; matrix products in floats stay with torch's libraries."""

import torch

from kernels.eight_bits import LARGEST
from kernels.triton.copy_blocks import copy_blocks
from kernels.triton.paged_attention import paged_attention
from kernels.triton.quantized_linear import quantized_linear
from kernels.triton.rms_norm import fused_add_rms_norm, rms_norm
from kernels.triton.rotate_and_store import rotate_and_store
from kernels.triton.silu_and_mul import silu_and_mul

max_head_dim = 256
"""Rows of 256 numbers are the longest that tiles are made for."""
cache_dtypes = frozenset({torch.float32, torch.bfloat16, torch.float16, *LARGEST})

__all__ = [
    "cache_dtypes",
    "copy_blocks",
    "fused_add_rms_norm",
    "max_head_dim",
    "paged_attention",
    "quantized_linear",
    "rms_norm",
    "rotate_and_store",
    "silu_and_mul",
]
