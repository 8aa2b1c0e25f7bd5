"""The GPU backend: Triton kernels over paged memory; the small operations are PyTorch's."""

from kernels.reference import fused_add_rms_norm, rms_norm, rotary, silu_and_mul
from kernels.triton.copy_blocks import copy_blocks
from kernels.triton.paged_attention import paged_attention
from kernels.triton.store_kv_cache import store_kv_cache

__all__ = [
    "copy_blocks",
    "fused_add_rms_norm",
    "paged_attention",
    "rms_norm",
    "rotary",
    "silu_and_mul",
    "store_kv_cache",
]
