"""The choice of a backend, and every operation of every backend against the specification."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch

from kernels import reference
from kernels.kv_pool import LayerCache
from kernels.ops import KernelBackend, select_backend
from tests.kernels.paged import make_batch

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCES[expected.dtype]
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)


def skip_where_wrong(backend: KernelBackend, dtype: torch.dtype) -> None:
    interpreted = backend.name == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted and dtype is torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies bfloat16 matrices as integers")


def run_python(program: str) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


# --- choice -------------------------------------------------------------------------------------


def test_auto_on_a_cpu_is_the_cpu_backend() -> None:
    backend = select_backend("auto", CPU)
    assert backend.name == "cpu"
    assert backend.reason == "the fastest for a cpu device"


def test_auto_without_numba_is_the_reference() -> None:
    name, reason, refusal = run_python(
        """
        import sys, torch
        sys.modules["numba"] = None
        from kernels.ops import select_backend
        backend = select_backend("auto", torch.device("cpu"))
        print(backend.name, backend.reason, sep="\\n")
        try:
            select_backend("cpu", torch.device("cpu"))
        except ValueError as error:
            print(error)
        """
    ).splitlines()
    assert name == "reference"
    assert reason.startswith("cpu cannot be used: numba does not work here")
    assert refusal.startswith("attention backend 'cpu' cannot be used: numba does not work here")


def test_a_backend_that_cannot_work_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(
        ValueError, match=r"'triton' cannot be used: .* the device is cpu .*TRITON_INTERPRET=1"
    ):
        select_backend("triton", CPU)
    with pytest.raises(ValueError, match=r"'cpu' cannot be used: .* the device is cuda"):
        select_backend("cpu", torch.device("cuda"))


def test_an_old_gpu_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(ValueError, match=r"Ampere generation or newer, and this is Tesla T4"):
        select_backend("triton", torch.device("cuda"))


def test_auto_on_another_device_says_why_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    backend = select_backend("auto", torch.device("mps"))
    assert backend.name == "reference"
    assert "it needs an NVIDIA or AMD GPU, and the device is mps" in backend.reason


def test_importing_ops_loads_neither_numba_nor_triton() -> None:
    program = "import sys, kernels.ops; print(sorted({'numba', 'triton'} & set(sys.modules)))"
    assert run_python(program) == "[]\n"


# --- attention ----------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 8, 16, 128])
@pytest.mark.parametrize("group_size", [1, 3, 4, 5])
def test_attention_of_a_mixed_batch(
    backend: KernelBackend, device: torch.device, block_size: int, group_size: int
) -> None:
    lengths = [(1, 1), (1, max(1, block_size - 1)), (1, block_size), (1, block_size + 1)]
    lengths += [(7, 7), (2, block_size + 1), (0, 4), (18, 40)]
    batch = make_batch(lengths, block_size=block_size, group_size=group_size, head_dim=32)
    actual = backend.paged_attention(*batch.to(device).arguments())
    assert_close(actual, reference.paged_attention(*batch.arguments()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_attention_dtypes_and_head_dims(
    backend: KernelBackend, device: torch.device, dtype: torch.dtype, head_dim: int
) -> None:
    skip_where_wrong(backend, dtype)
    batch = make_batch([(1, 20), (5, 17)], head_dim=head_dim, dtype=dtype)
    actual = backend.paged_attention(*batch.to(device).arguments())
    assert actual.dtype is dtype
    assert_close(actual, reference.paged_attention(*batch.arguments()))


@pytest.mark.parametrize("cache_dtype", DTYPES)
def test_attention_over_a_cache_of_another_dtype(
    backend: KernelBackend, device: torch.device, cache_dtype: torch.dtype
) -> None:
    batch = make_batch([(1, 20), (5, 17)], cache_dtype=cache_dtype)
    actual = backend.paged_attention(*batch.to(device).arguments())
    assert_close(actual, reference.paged_attention(*batch.arguments()))


def test_attention_of_rows_that_see_nothing_is_zero(
    backend: KernelBackend, device: torch.device
) -> None:
    batch = make_batch([(2, 0), (5, 3), (1, 4)])
    actual = backend.paged_attention(*batch.to(device).arguments())
    assert not actual[:4].any()
    assert_close(actual, reference.paged_attention(*batch.arguments()))


@pytest.mark.parametrize("window", [1, 7, 8, 9, 16, 1000])
def test_attention_in_a_window(backend: KernelBackend, device: torch.device, window: int) -> None:
    """In blocks of 8; what lies before all windows of a sequence is poison."""
    lengths = [(1, 1), (1, 7), (1, 8), (1, 9), (1, 75), (7, 7), (2, 9), (3, 40), (18, 40), (5, 3)]
    lengths += [(0, 30), (1, 0)]
    batch = make_batch(lengths, block_size=8, head_dim=32, num_kv_heads=1, window=window)
    actual = backend.paged_attention(*batch.to(device).arguments())
    assert_close(actual, reference.paged_attention(*batch.arguments()))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")  # the kernel means infinity
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("largest", [1.0, 1e4])
def test_attention_with_a_soft_cap(
    backend: KernelBackend, device: torch.device, largest: float, window: int | None
) -> None:
    batch = make_batch([(1, 20), (18, 40), (2, 0)], block_size=8, soft_cap=5.0, window=window)
    batch.query.mul_(largest)
    actual = backend.paged_attention(*batch.to(device).arguments())
    expected = reference.paged_attention(*batch.arguments())
    assert not expected[-2:].any()
    uncapped = replace(batch, rules=replace(batch.rules, soft_cap=None))
    assert (reference.paged_attention(*uncapped.arguments()) - expected).abs().max() > 0.05
    assert_close(actual, expected)


def test_attention_of_an_empty_batch(backend: KernelBackend, device: torch.device) -> None:
    batch = make_batch([])
    assert backend.paged_attention(*batch.to(device).arguments()).shape == (0, 6, 64)
    idle = make_batch([(0, 5), (0, 1)])
    assert backend.paged_attention(*idle.to(device).arguments()).shape == (0, 6, 64)


def test_attention_with_many_heads_of_one_kv_head(
    backend: KernelBackend, device: torch.device
) -> None:
    batch = make_batch([(3, 20), (1, 33)], num_kv_heads=1, group_size=71, head_dim=16)
    actual = backend.paged_attention(*batch.to(device).arguments())
    assert_close(actual, reference.paged_attention(*batch.arguments()))


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", DTYPES)
@pytest.mark.parametrize(("block_size", "num_heads"), [(1, 3), (16, 9), (16, 15)])
def test_rotate_and_store(
    backend: KernelBackend,
    device: torch.device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    block_size: int,
    num_heads: int,
) -> None:
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn((20, num_heads + 6, 40), generator=generator).to(dtype)
    slots = torch.randperm(48, generator=generator)[:20]
    slots[[2, 19]] = -1
    positions, cos_sin = torch.arange(20).flip(0) * 2, torch.randn((50, 40), generator=generator)
    empty = torch.zeros(2, 2, 48 // block_size, 3, block_size, 40, dtype=cache_dtype)
    pools, queries = [empty, empty.to(device, copy=True)], []
    for operation, pool in zip((reference, backend), pools, strict=True):
        query, key, value = qkv.to(pool.device, copy=True).split([num_heads, 3, 3], dim=1)
        step = (positions.to(pool.device), cos_sin.to(pool.device))
        cache = LayerCache(*pool[1])
        operation.rotate_and_store(query, key, value, *step, cache, slots.to(pool.device))
        queries.append(query.cpu())
    assert_close(queries[1], queries[0])
    # Triton's interpreter cuts a float32 to bfloat16 instead of rounding it: one unit in the last place.
    torch.testing.assert_close(pools[1].cpu(), pools[0], rtol=2**-7, atol=2e-5)
    assert torch.equal(pools[1].cpu() == 0, pools[0] == 0), "other slots are not touched"


def test_rotate_and_store_nothing(backend: KernelBackend, device: torch.device) -> None:
    pool = torch.ones(1, 2, 2, 3, 4, 8, device=device)
    nothing, slots = pool.new_empty(0, 3, 8), torch.empty(0, dtype=torch.int64, device=device)
    step = (nothing, nothing, nothing, slots, pool.new_empty(4, 8))
    backend.rotate_and_store(*step, LayerCache(*pool[0]), slots)
    assert (pool == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("copies", [[], [(0, 3)], [(5, 0), (5, 1), (2, 4)]])
def test_copy_blocks(
    backend: KernelBackend,
    device: torch.device,
    dtype: torch.dtype,
    copies: list[tuple[int, int]],
) -> None:
    src, dst = torch.tensor(copies, dtype=torch.int64).reshape(-1, 2).unbind(1)
    wide = torch.randn(2, 2, 7, 3, 8, 48).to(dtype)
    expected, actual = wide[:, :, :6].clone(), wide.to(device)[:, :, :6]
    reference.copy_blocks(expected, src, dst)
    backend.copy_blocks(actual, src.contiguous().to(device), dst.contiguous().to(device))
    assert torch.equal(actual.cpu(), expected)


# --- small operations ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [0, 1, 19])
def test_norms(
    backend: KernelBackend,
    device: torch.device,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    num_tokens: int,
) -> None:
    x = torch.randn(num_tokens, 2 * 72).to(dtype)[:, :72]
    weight, residual = torch.randn(72).to(weight_dtype), torch.randn(num_tokens, 72)
    expected = reference.rms_norm(x, weight, 1e-5)
    there = x.to(device), residual.to(device), weight.to(device)
    assert_close(backend.rms_norm(there[0], there[2], 1e-5), expected)
    expected, expected_total = reference.fused_add_rms_norm(x, residual, weight, 1e-5)
    actual, total = backend.fused_add_rms_norm(*there, 1e-5)
    assert_close(actual, expected)
    assert torch.equal(total.cpu(), expected_total)
    assert torch.equal(there[0].cpu(), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [0, 1, 19])
def test_silu_and_mul(
    backend: KernelBackend, device: torch.device, dtype: torch.dtype, num_tokens: int
) -> None:
    gate_up = (30 * torch.randn(num_tokens, 2 * 50)).to(dtype)
    assert_close(backend.silu_and_mul(gate_up.to(device)), reference.silu_and_mul(gate_up))


def test_silu_of_extreme_gates(backend: KernelBackend, device: torch.device) -> None:
    gates = [-1e30, -200.0, -1.0, 0.0, 1.0, 200.0, float("inf"), float("nan")]
    gate_up = torch.tensor([gates + [1.0] * len(gates)])
    actual = backend.silu_and_mul(gate_up.to(device)).cpu()
    torch.testing.assert_close(
        actual[0, 1:], reference.silu_and_mul(gate_up)[0, 1:], equal_nan=True
    )
    assert actual[0, 0].abs() < 1e-7
