"""Root mean square normalisation (Zhang and Sennrich 2019), alone or fused with the residual addition."""

import torch

from kernels.ops import KernelBackend


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""

    def __init__(self, weight: torch.Tensor, eps: float, ops: KernelBackend) -> None:
        self.weight, self.eps, self.ops = weight, eps, ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x [num_rows, size]."""
        return self.ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(normalised x + residual in x's dtype, x + residual in residual's), both [num_tokens, size]."""
        return self.ops.fused_add_rms_norm(x, residual, self.weight, self.eps)
