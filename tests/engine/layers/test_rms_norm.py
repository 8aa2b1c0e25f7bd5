"""The normalisation layer: alone, and with the addition to a float32 residual."""

import torch

from engine.layers.rms_norm import RMSNorm
from kernels.ops import select_backend


def test_alone_and_with_the_addition() -> None:
    torch.manual_seed(0)
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.rand(8)
    norm = RMSNorm(weight, 1e-5, select_backend("reference", torch.device("cpu")))
    expected = torch.nn.functional.rms_norm(x, (8,), weight, 1e-5)
    assert torch.allclose(norm(x), expected, atol=1e-6)
    normed, total = norm.add(x.bfloat16(), residual)
    assert (normed.dtype, total.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(total, x.bfloat16().float() + residual)
    exact = torch.nn.functional.rms_norm(total, (8,), weight, 1e-5)
    assert torch.equal(normed, exact.bfloat16())
