"""Root mean square normalisation (Zhang and Sennrich, 2019), alone or behind the addition of the residual: one row a program."""

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.triton.chip import Chip, chip_of


@triton.jit
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    stride_x,
    stride_residual,
    eps,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, SIZE_PADDED)
    mask = offsets < SIZE
    x = tl.load(x_ptr + row * stride_x + offsets, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        residual = tl.load(residual_ptr + row * stride_residual + offsets, mask=mask, other=0.0)
        x += residual.to(tl.float32)
        tl.store(total_ptr + row * SIZE + offsets, x.to(total_ptr.dtype.element_ty), mask=mask)
    weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    out = x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps) * weight
    tl.store(out_ptr + row * SIZE + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm_keywords(size: int, add: bool, chip: Chip) -> dict[str, Any]:
    """What the kernel is compiled for: constants and warps."""
    padded = triton.next_power_of_2(size)
    return {
        "SIZE": size,
        "SIZE_PADDED": padded,
        "ADD": add,
        "num_warps": chip.warps_for(padded),
        "enable_fp_fusion": True,
    }


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `kernels.ops.RMSNorm`."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    num_rows, size = x.shape
    if num_rows:
        rms_norm_kernel[(num_rows,)](
            x,
            x,
            weight,
            out,
            out,
            x.stride(0),
            0,
            eps,
            **rms_norm_keywords(size, add=False, chip=chip_of(x.device)),
        )
    return out


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.ops.FusedAddRMSNorm`."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    total = torch.empty_like(residual, memory_format=torch.contiguous_format)
    num_rows, size = x.shape
    if num_rows:
        rms_norm_kernel[(num_rows,)](
            x,
            residual,
            weight,
            out,
            total,
            x.stride(0),
            residual.stride(0),
            eps,
            **rms_norm_keywords(size, add=True, chip=chip_of(x.device)),
        )
    return out, total
