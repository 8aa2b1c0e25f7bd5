"""silu(gate) * up (Shazeer, GLU Variants, 2020): one program for a piece of a row."""

import torch
import triton
import triton.language as tl

from kernels.triton.chip import Chip, chip_of

PIECE = 1024


@triton.jit
def silu_and_mul_kernel(
    gate_up_ptr, out_ptr, stride_row, SIZE: tl.constexpr, PIECE_SIZE: tl.constexpr
):
    NUM_PIECES: tl.constexpr = (SIZE + PIECE_SIZE - 1) // PIECE_SIZE
    row = (tl.program_id(0) // NUM_PIECES).to(tl.int64)
    offsets = tl.program_id(0) % NUM_PIECES * PIECE_SIZE + tl.arange(0, PIECE_SIZE)
    mask = offsets < SIZE
    gate_ptr = gate_up_ptr + row * stride_row + offsets
    gate = tl.load(gate_ptr, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + SIZE, mask=mask, other=0.0).to(tl.float32)
    # exp of a negative number: it cannot overflow.
    small = tl.exp(-tl.abs(gate))
    sigmoid = tl.where(gate >= 0, 1.0, small) / (1.0 + small)
    out = gate * sigmoid * up
    tl.store(out_ptr + row * SIZE + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)


def silu_and_mul_keywords(size: int, chip: Chip) -> dict[str, int]:
    """What the kernel is compiled for: constants and warps."""
    return {
        "SIZE": size,
        "PIECE_SIZE": PIECE,
        "num_warps": chip.warps_for(PIECE),
        "enable_fp_fusion": True,
    }


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `kernels.ops.SiluAndMul`."""
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((num_rows, size))
    if num_rows:
        silu_and_mul_kernel[(num_rows * triton.cdiv(size, PIECE),)](
            gate_up, out, gate_up.stride(0), **silu_and_mul_keywords(size, chip_of(gate_up.device))
        )
    return out
