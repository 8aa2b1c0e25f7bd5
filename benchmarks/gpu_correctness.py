"""Every Triton kernel against the same arithmetic in float64, on random data."""

from collections.abc import Iterator

import torch

from benchmarks.gpu_rows import Row
from kernels.ops import KernelBackend, select_backend

TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SHAPES = [(64, 3, 16), (128, 4, 16), (80, 1, 8), (96, 5, 32), (128, 8, 128), (256, 4, 64)]
"""(head_dim, group, block_size): all for bfloat16, the first for the other types, as each is compiled anew."""
LENGTHS = [(1, 1), (1, 300), (5, 5), (70, 200), (2, 131), (0, 7), (1, 0)]
"""(query_len, seq_len)"""


def check_kernels(device: torch.device) -> Iterator[Row]:
    """The largest error of each kernel, relative to the largest right value."""
    ops = select_backend("triton", device)
    for dtype in TOLERANCES if device.type == "cuda" else [torch.float32]:
        for shape in SHAPES if dtype is torch.bfloat16 else SHAPES[:1]:
            yield _check_attention(ops, dtype, device, *shape)
        yield _check_rotation(ops, dtype, device)
        yield _check_norm(ops, dtype, device)
        yield _check_activation(ops, dtype, device)
    yield _check_copies(ops, device)


def _row(name: str, actual: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> Row:
    difference = (actual.double() - exact).abs().max() / exact.abs().max().clamp(min=1)
    error, limit = float(difference), TOLERANCES[dtype]
    # Not a number is wrong too.
    wrong = not error <= limit
    return Row(f"{name}, {dtype}".replace("torch.", ""), error, "error", limit, wrong)


def _check_attention(
    ops: KernelBackend,
    dtype: torch.dtype,
    device: torch.device,
    head_dim: int,
    group: int,
    block_size: int,
) -> Row:
    num_kv_heads = 2
    counts = [-(-seq_len // block_size) for _, seq_len in LENGTHS]
    pool = torch.randn((2, sum(counts), num_kv_heads, block_size, head_dim), device=device)
    pool = pool.to(dtype)
    order = torch.randperm(sum(counts), device=device, dtype=torch.int32)
    tables = torch.zeros((len(LENGTHS), max(counts)), dtype=torch.int32, device=device)
    for row, blocks in zip(tables, order.split(counts), strict=True):
        row[: len(blocks)] = blocks
    starts = torch.tensor([0, *(query_len for query_len, _ in LENGTHS)]).cumsum(0)
    shape = (int(starts[-1]), num_kv_heads * group, head_dim)
    query = torch.randn(shape, device=device).to(dtype)
    seq_lens = torch.tensor([seq_len for _, seq_len in LENGTHS], dtype=torch.int32, device=device)
    where = (tables, seq_lens, starts.int().to(device), 70, head_dim**-0.5)
    actual = ops.paged_attention(query, pool[0], pool[1], *where)
    exact = torch.zeros(shape, dtype=torch.float64, device=device)
    for s, (query_len, seq_len) in enumerate(LENGTHS):
        rows = slice(int(starts[s]), int(starts[s]) + query_len)
        if query_len and seq_len:
            exact[rows] = _exact_attention(query[rows], pool[:, tables[s].long()], seq_len)
    return _row(
        f"attention, head_dim {head_dim}, group {group}, blocks of {block_size}",
        actual,
        exact,
        dtype,
    )


def _exact_attention(query: torch.Tensor, blocks: torch.Tensor, seq_len: int) -> torch.Tensor:
    """query [query_len, num_heads, head_dim] over blocks [2, num_blocks, num_kv_heads, block_size, head_dim]."""
    query_len, num_heads, head_dim = query.shape
    kv = blocks.transpose(1, 2).flatten(2, 3)[:, :, :seq_len].double()
    keys, values = kv.repeat_interleave(num_heads // kv.shape[1], dim=1)
    scores = torch.einsum("qhd,hkd->hqk", query.double(), keys) * head_dim**-0.5
    ones = torch.ones((query_len, seq_len), dtype=torch.bool, device=query.device)
    hidden = ones.triu(seq_len - query_len + 1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,hkd->qhd", weights, values)


def _check_rotation(ops: KernelBackend, dtype: torch.dtype, device: torch.device) -> Row:
    qkv = torch.randn((50, 10, 64), device=device).to(dtype)
    angles = torch.rand((60, 32), device=device) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.randperm(50, device=device)
    slots = torch.randperm(64, device=device)[:50]
    pool = torch.zeros((2, 4, 2, 16, 64), dtype=dtype, device=device)
    turned = qkv.clone()
    query, key, value = turned.split([6, 2, 2], dim=1)
    ops.rotate_and_store(query, key, value, positions, cos_sin, pool[0], pool[1], slots)
    cos, sin = cos_sin[positions].double()[:, None].chunk(2, dim=-1)
    low, high = qkv[:, :8].double().chunk(2, dim=-1)
    exact = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    stored = [cache[slots // 16, :, slots % 16] for cache in pool]
    actual = torch.cat([query, *stored], dim=1)
    return _row("rotate_and_store", actual, torch.cat([exact, qkv[:, 8:].double()], 1), dtype)


def _check_norm(ops: KernelBackend, dtype: torch.dtype, device: torch.device) -> Row:
    x = torch.randn((33, 4096), device=device).to(dtype)
    residual, weight = torch.randn((33, 4096), device=device), torch.rand(4096, device=device)
    actual, total = ops.fused_add_rms_norm(x, residual, weight, 1e-5)
    exact_total = x.double() + residual.double()
    mean = exact_total.square().mean(-1, keepdim=True)
    exact = exact_total * (mean + 1e-5).rsqrt() * weight.double()
    both = torch.cat([actual.float(), total.float()])
    return _row("fused_add_rms_norm", both, torch.cat([exact, exact_total]), dtype)


def _check_activation(ops: KernelBackend, dtype: torch.dtype, device: torch.device) -> Row:
    gate_up = (torch.randn((33, 2 * 1536), device=device) * 8).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    return _row("silu_and_mul", ops.silu_and_mul(gate_up), gate * gate.sigmoid() * up, dtype)


def _check_copies(ops: KernelBackend, device: torch.device) -> Row:
    pool = torch.randn((3, 2, 9, 2, 16, 64), device=device)
    expected, src, dst = pool.double(), torch.tensor([1, 1, 4]), torch.tensor([0, 8, 2])
    expected[:, :, dst] = expected[:, :, src]
    ops.copy_blocks(pool, src.to(device), dst.to(device))
    return _row("copy_blocks", pool, expected, torch.float32)
