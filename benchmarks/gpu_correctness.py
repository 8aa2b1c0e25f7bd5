"""Every Triton kernel against the same arithmetic in float64, on random data."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu_rows import Row
from kernels.attention_rules import AttentionRules
from kernels.eight_bits import LARGEST, quantize
from kernels.kv_pool import KVLayout, LayerCache
from kernels.ops import KernelBackend, select_backend

TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
HALF_STEPS = {torch.int8: 0.5 / 127, torch.float8_e4m3fn: 16 / 448}
"""The most that rounding to eight bits changes, relative to the largest of its head."""
SHAPES = [(64, 3, 16), (128, 4, 16), (80, 1, 8), (96, 5, 32), (128, 8, 128), (256, 4, 64)]
"""(head_dim, group, block_size): all for bfloat16, the first for the other types, as each is compiled anew."""
PRODUCT_ROWS = (1, 64, 300)
LIMITS = [(33, None), (None, 2.0), (33, 2.0)]
"""(window, soft cap)"""
LENGTHS = [(1, 1), (1, 300), (5, 5), (70, 200), (2, 131), (0, 7), (1, 0)]
"""(query_len, seq_len)"""


def check_kernels(device: torch.device) -> Iterator[Row]:
    """The largest error of each kernel, relative to the largest right value."""
    ops = select_backend("triton", device)
    dtypes = list(TOLERANCES) if device.type == "cuda" else [torch.float32]
    for dtype in dtypes:
        for shape in SHAPES if dtype is torch.bfloat16 else SHAPES[:1]:
            yield _check_attention(ops, dtype, dtype, device, Attention(*shape))
        yield _check_rotation(ops, dtype, dtype, device)
        for kv_dtype in LARGEST:
            for shape in SHAPES[:2] if dtype is torch.bfloat16 else SHAPES[:1]:
                yield _check_attention(ops, dtype, kv_dtype, device, Attention(*shape))
            yield _check_rotation(ops, dtype, kv_dtype, device)
            for num_rows in PRODUCT_ROWS:
                yield _check_product(ops, dtype, kv_dtype, device, num_rows)
        yield _check_norm(ops, dtype, device)
        yield _check_activation(ops, dtype, device)
    for limits in LIMITS:
        attention = Attention(*SHAPES[0], *limits)
        for kv_dtype in (dtypes[-1], torch.int8) if None not in limits else dtypes[-1:]:
            yield _check_attention(ops, dtypes[-1], kv_dtype, device, attention)
    yield _check_copies(ops, device)


def _row(name: str, actual: torch.Tensor, exact: torch.Tensor, limit: float) -> Row:
    difference = (actual.double() - exact).abs().max() / exact.abs().max().clamp(min=1)
    error = float(difference)
    # Not a number is wrong too.
    wrong = not error <= limit
    return Row(name.replace("torch.", ""), error, "error", limit, wrong)


@dataclass(frozen=True)
class Attention:
    """Sizes and rules of a layer."""

    head_dim: int
    group: int
    block_size: int
    window: int | None = None
    soft_cap: float | None = None

    @property
    def rules(self) -> AttentionRules:
        return AttentionRules(self.head_dim**-0.5, self.window, self.soft_cap)

    def __str__(self) -> str:
        window = f", window of {self.window}" if self.window else ""
        cap = f", soft cap of {self.soft_cap:g}" if self.soft_cap else ""
        return f"head_dim {self.head_dim}, group {self.group}, blocks of {self.block_size}{window}{cap}"


def _check_attention(
    ops: KernelBackend,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
    attention: Attention,
) -> Row:
    num_kv_heads, block_size, rules = 2, attention.block_size, attention.rules
    counts = [-(-seq_len // block_size) for _, seq_len in LENGTHS]
    pool = torch.randn(
        (2, sum(counts) + 1, num_kv_heads, block_size, attention.head_dim), device=device
    )
    pool[:, -1] = float("nan")
    cache = _cache_of(pool, kv_dtype)
    numbers = torch.stack([_exact(*half) for half in _halves(cache)])
    order = torch.randperm(sum(counts), device=device, dtype=torch.int32)
    tables = torch.full((len(LENGTHS), max(counts)), sum(counts), dtype=torch.int32, device=device)
    starts = torch.tensor([0, *(query_len for query_len, _ in LENGTHS)]).cumsum(0)
    shape = (int(starts[-1]), num_kv_heads * attention.group, attention.head_dim)
    query = torch.randn(shape, device=device).to(dtype)
    exact = torch.zeros(shape, dtype=torch.float64, device=device)
    for s, ((query_len, seq_len), blocks) in enumerate(
        zip(LENGTHS, order.split(counts), strict=True)
    ):
        rows = slice(int(starts[s]), int(starts[s]) + query_len)
        if query_len and seq_len:
            exact[rows] = _exact_attention(query[rows], numbers[:, blocks.long()], seq_len, rules)
        first = rules.first_visible(max(0, seq_len - query_len)) // block_size
        tables[s, first : len(blocks)] = blocks[first:]
    seq_lens = torch.tensor([seq_len for _, seq_len in LENGTHS], dtype=torch.int32, device=device)
    actual = ops.paged_attention(query, cache, tables, seq_lens, starts.int().to(device), 70, rules)
    return _row(
        _named(f"attention, {attention}", dtype, kv_dtype), actual, exact, TOLERANCES[dtype]
    )


def _named(name: str, dtype: torch.dtype, kv_dtype: torch.dtype) -> str:
    return f"{name}, {dtype}" + (f", {kv_dtype} KV" if kv_dtype in LARGEST else "")


def _cache_of(pool: torch.Tensor, kv_dtype: torch.dtype) -> LayerCache:
    """Keys and values `pool` [2, num_blocks, num_kv_heads, block_size, head_dim] as numbers of a type."""
    if kv_dtype not in LARGEST:
        return LayerCache(*pool.to(kv_dtype))
    numbers, scales = quantize(pool, kv_dtype)
    return LayerCache(*numbers, *scales)


def _halves(cache: LayerCache) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    return [(cache.keys, cache.key_scales), (cache.values, cache.value_scales)]


def _exact(numbers: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """What is stored, in float64."""
    wide = numbers.float().double()
    return wide if scales is None else wide * scales.double()[..., None] / LARGEST[numbers.dtype]


def _exact_attention(
    query: torch.Tensor, blocks: torch.Tensor, seq_len: int, rules: AttentionRules
) -> torch.Tensor:
    """query [query_len, num_heads, head_dim] over blocks [2, num_blocks, num_kv_heads, block_size, head_dim]."""
    query_len, num_heads, _ = query.shape
    kv = blocks.transpose(1, 2).flatten(2, 3)[:, :, :seq_len].double()
    keys, values = kv.repeat_interleave(num_heads // kv.shape[1], dim=1)
    scores = torch.einsum("qhd,hkd->hqk", query.double(), keys) * rules.scale
    if rules.soft_cap is not None:
        scores = rules.soft_cap * (scores / rules.soft_cap).tanh()
    ones = torch.ones((query_len, seq_len), dtype=torch.bool, device=query.device)
    hidden = ones.triu(seq_len - query_len + 1)
    if rules.window is not None:
        hidden |= ones.tril(seq_len - query_len - rules.window)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,hkd->qhd", weights, values)


def _check_rotation(
    ops: KernelBackend, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device
) -> Row:
    qkv = torch.randn((50, 10, 64), device=device).to(dtype)
    angles = torch.rand((60, 32), device=device) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.randperm(50, device=device)
    slots = torch.randperm(64, device=device)[:50]
    layout = KVLayout(num_layers=1, num_kv_heads=2, block_size=16, head_dim=64, dtype=kv_dtype)
    cache = layout.allocate(4, device).layers[0]
    turned = qkv.clone()
    query, key, value = turned.split([6, 2, 2], dim=1)
    ops.rotate_and_store(query, key, value, positions, cos_sin, cache, slots)
    cos, sin = cos_sin[positions].double()[:, None].chunk(2, dim=-1)
    low, high = qkv[:, :8].double().chunk(2, dim=-1)
    exact = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    stored = [_exact(*half)[slots // 16, :, slots % 16] for half in _halves(cache)]
    actual = torch.cat([query.double(), *stored], dim=1)
    limit = TOLERANCES[dtype] + HALF_STEPS.get(kv_dtype, 0.0)
    name = _named("rotate_and_store", dtype, kv_dtype)
    return _row(name, actual, torch.cat([exact, qkv[:, 8:].double()], 1), limit)


def _check_product(
    ops: KernelBackend,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    device: torch.device,
    num_rows: int,
) -> Row:
    assert ops.quantized_linear is not None, "the backend multiplies eight bits"
    x = torch.randn((num_rows, 1536), device=device).to(dtype)
    weight, scales = quantize(torch.randn((600, 1536), device=device), weight_dtype)
    bias = torch.randn(600, device=device).to(dtype)
    actual = ops.quantized_linear(x, weight, scales, bias)
    exact = x.double() @ _exact(weight, scales).T + bias.double()
    name = f"quantized_linear, {num_rows} rows, {dtype}, {weight_dtype} weights"
    return _row(name, actual, exact, TOLERANCES[dtype])


def _check_norm(ops: KernelBackend, dtype: torch.dtype, device: torch.device) -> Row:
    x = torch.randn((33, 4096), device=device).to(dtype)
    residual, weight = torch.randn((33, 4096), device=device), torch.rand(4096, device=device)
    actual, total = ops.fused_add_rms_norm(x, residual, weight, 1e-5)
    exact_total = x.double() + residual.double()
    mean = exact_total.square().mean(-1, keepdim=True)
    exact = exact_total * (mean + 1e-5).rsqrt() * weight.double()
    both = torch.cat([actual.float(), total.float()])
    name = f"fused_add_rms_norm, {dtype}"
    return _row(name, both, torch.cat([exact, exact_total]), TOLERANCES[dtype])


def _check_activation(ops: KernelBackend, dtype: torch.dtype, device: torch.device) -> Row:
    gate_up = (torch.randn((33, 2 * 1536), device=device) * 8).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    exact = gate * gate.sigmoid() * up
    return _row(f"silu_and_mul, {dtype}", ops.silu_and_mul(gate_up), exact, TOLERANCES[dtype])


def _check_copies(ops: KernelBackend, device: torch.device) -> Row:
    pool = torch.randn((3, 2, 9, 2, 16, 64), device=device)
    expected, src, dst = pool.double(), torch.tensor([1, 1, 4]), torch.tensor([0, 8, 2])
    expected[:, :, dst] = expected[:, :, src]
    ops.copy_blocks(pool, src.to(device), dst.to(device))
    return _row("copy_blocks", pool, expected, 0.0)
