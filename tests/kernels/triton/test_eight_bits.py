"""Keys and values of eight bits on the GPU backend: what is stored, what attention makes of it, on chips with and without e4m3."""

from dataclasses import replace

import pytest
import torch
import triton.language as tl

from kernels import reference
from kernels.attention_rules import AttentionRules
from kernels.kv_pool import KVLayout, KVPool, LayerCache
from kernels.triton import eight_bits
from kernels.triton.attention_tile import Operands
from kernels.triton.chip import MI300X
from kernels.triton.copy_blocks import copy_blocks
from kernels.triton.decode_attention import decode_attention
from kernels.triton.paged_attention import paged_attention
from kernels.triton.rotate_and_store import rotate_and_store
from tests.kernels.paged import make_batch, poisoned
from tests.kernels.triton.ptx import run

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FP8 = torch.float8_e4m3fn
DTYPES = [torch.int8, FP8]


def on_device(pool: KVPool, layout: KVLayout) -> KVPool:
    """A copy of the pool where the kernels run."""
    num_blocks = pool.memory.shape[2]
    there = layout.allocate(num_blocks, DEVICE)
    there.memory.copy_(pool.memory)
    return there


def stored_by_both(
    layout: KVLayout, qkv: torch.Tensor, slots: torch.Tensor
) -> tuple[KVPool, KVPool]:
    """Pools after the kernel and after the specification stored the same tokens of one layer."""
    heads = [qkv.shape[1] - 2 * layout.num_kv_heads, layout.num_kv_heads, layout.num_kv_heads]
    positions = torch.arange(len(qkv)).flip(0)
    cos_sin = torch.randn((len(qkv), layout.head_dim), generator=torch.Generator().manual_seed(3))
    expected = poisoned(layout, 6)
    actual = on_device(expected, layout)
    query, key, value = qkv.clone().split(heads, dim=1)
    reference.rotate_and_store(query, key, value, positions, cos_sin, expected.layers[0], slots)
    query, key, value = qkv.to(DEVICE, copy=True).split(heads, dim=1)
    there = (positions.to(DEVICE), cos_sin.to(DEVICE), actual.layers[0], slots.to(DEVICE))
    rotate_and_store(query, key, value, *there)
    return actual, expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("block_size", "head_dim"), [(1, 40), (8, 80), (16, 64)])
def test_what_is_stored_is_what_the_specification_stores(
    dtype: torch.dtype, block_size: int, head_dim: int
) -> None:
    layout = KVLayout(
        num_layers=1, num_kv_heads=3, block_size=block_size, head_dim=head_dim, dtype=dtype
    )
    qkv = torch.randn((5, 9 + 6, head_dim), generator=torch.Generator().manual_seed(2))
    qkv[0, -1] = 0
    qkv[1, -1] *= 1e-33
    qkv[2, -2] *= 1e4
    slots = torch.tensor([5, -1, 0, 3, 2])
    actual, expected = stored_by_both(layout, qkv, slots)
    if DEVICE.type == "cpu":
        assert torch.equal(actual.memory, expected.memory)
    for one, other in zip(actual.layers, expected.layers, strict=True):
        for (numbers, scales), (right, right_scales) in zip(runs(one), runs(other), strict=True):
            # Sums in another order end on the other side of a half now and then: a step away.
            apart = (numbers.cpu().float() - right.float()).abs().nan_to_num()
            assert (apart <= (1 if dtype is torch.int8 else 32)).all()
            torch.testing.assert_close(scales.cpu(), right_scales, equal_nan=True)


def runs(cache: LayerCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values with their scales."""
    assert cache.key_scales is not None
    assert cache.value_scales is not None
    return [(cache.keys, cache.key_scales), (cache.values, cache.value_scales)]


def test_rounding_to_e4m3_is_that_of_torch() -> None:
    """Halves, numbers just beside them, subnormal numbers, the largest; a factor of 1 keeps them as they are."""
    codes = torch.arange(0x7F, dtype=torch.uint8).view(FP8).float()
    halves = (codes[1:] + codes[:-1]) / 2
    beside = [halves.nextafter(torch.full_like(halves, x)) for x in (0.0, 448.0)]
    numbers = torch.cat([codes, halves, *beside])
    numbers = torch.cat([numbers, -numbers]).unflatten(0, (10, 101))
    values = torch.cat([torch.full((len(numbers), 1), 448.0), numbers], dim=1)[:, None]
    layout = KVLayout(num_layers=1, num_kv_heads=1, block_size=4, head_dim=102, dtype=FP8)
    cache = layout.allocate(8, DEVICE).layers[0]
    zeros = torch.zeros_like(values, device=DEVICE)
    slots = torch.arange(len(values), device=DEVICE)
    cos_sin = torch.zeros((len(values), 102), device=DEVICE)
    rotate_and_store(zeros, zeros.clone(), values.to(DEVICE), slots, cos_sin, cache, slots)
    stored = cache.values.transpose(1, 2).flatten(0, 1)[: len(values)].cpu()
    assert torch.equal(stored.view(torch.uint8), values.to(FP8).view(torch.uint8))


def attend(cache: LayerCache) -> torch.Tensor:
    """What one query makes of the first token of block 0."""
    head_dim = cache.keys.shape[3]
    query = torch.ones((1, 1, head_dim), device=DEVICE)
    table, seq_lens, starts = (
        torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([[0]], [1], [0, 1])
    )
    return paged_attention(query, cache, table, seq_lens, starts, 1, AttentionRules(1.0))[
        0, 0
    ].cpu()


def test_every_e4m3_is_widened_exactly() -> None:
    """A value with a weight of one is the answer: all codes but NaN."""
    layout = KVLayout(num_layers=1, num_kv_heads=1, block_size=8, head_dim=256, dtype=FP8)
    cache = layout.allocate(1, DEVICE).layers[0]
    codes = torch.arange(256, dtype=torch.uint8)
    codes[[0x7F, 0xFF]] = 0
    cache.values.view(torch.uint8)[0, 0, 0] = codes.to(DEVICE)
    runs(cache)[1][1][0, 0, 0] = 448.0
    torch.testing.assert_close(attend(cache), codes.view(FP8).float(), rtol=1e-6, atol=0)


def test_every_int8_is_widened_exactly() -> None:
    layout = KVLayout(num_layers=1, num_kv_heads=1, block_size=8, head_dim=256, dtype=torch.int8)
    cache = layout.allocate(1, DEVICE).layers[0]
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.int8)
    cache.values[0, 0, 0] = numbers.to(DEVICE)
    runs(cache)[1][1][0, 0, 0] = 127.0
    torch.testing.assert_close(attend(cache), numbers.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("program", "stored", "wide"),
    [
        (eight_bits.INT8_TO_FLOAT16, torch.int8, torch.float16),
        (eight_bits.INT8_TO_BFLOAT16, torch.int8, torch.bfloat16),
        (eight_bits.E4M3_TO_FLOAT16, FP8, torch.float16),
        (eight_bits.E4M3_TO_BFLOAT16, FP8, torch.bfloat16),
        (eight_bits.CONVERT_E4M3_TO_FLOAT16, FP8, torch.float16),
    ],
)
def test_programs_for_nvidia_widen_exactly(
    program: tl.constexpr, stored: torch.dtype, wide: torch.dtype
) -> None:
    """Four numbers from a register of bytes, the first from the lowest, whatever their neighbours are."""
    codes = torch.arange(256, dtype=torch.uint8)
    if stored is FP8:
        codes[[0x7F, 0xFF]] = 0  # NaN, which is not stored
    codes = codes[torch.randperm(256, generator=torch.Generator().manual_seed(4))]
    words = codes.reshape(-1, 4).contiguous().view(torch.int32)[:, 0].tolist()
    outputs = torch.tensor([run(program.value, word & 0xFFFFFFFF) for word in words])
    actual = (outputs & 0xFFFFFFFF).to(torch.uint32).view(torch.uint16).view(wide)
    expected = codes.view(stored).float()
    assert torch.equal(actual.flatten().float(), expected)


@pytest.mark.parametrize("cache_dtype", DTYPES)
@pytest.mark.parametrize("block_size", [8, 16])
def test_attention_of_a_mixed_batch(cache_dtype: torch.dtype, block_size: int) -> None:
    lengths = [(1, 1), (1, block_size - 1), (1, block_size), (1, block_size + 1), (1, 0)]
    lengths += [(7, 7), (2, block_size + 1), (0, 4), (18, 40), (5, 3)]
    batch = make_batch(
        lengths,
        block_size=block_size,
        num_kv_heads=1,
        head_dim=32,
        cache_dtype=cache_dtype,
    )
    actual = paged_attention(*batch.to(DEVICE).arguments()).cpu()
    expected = reference.paged_attention(*batch.arguments())
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("cache_dtype", DTYPES)
@pytest.mark.parametrize(
    ("seq_len", "window"), [(256, None), (257, None), (600, None), (600, 300), (600, 5)]
)
def test_splits_and_their_merge(cache_dtype: torch.dtype, seq_len: int, window: int | None) -> None:
    batch = make_batch(
        [(1, seq_len), (1, 3), (1, 0)],
        num_kv_heads=1,
        head_dim=16,
        cache_dtype=cache_dtype,
        window=window,
    )
    chip = replace(MI300X, num_cores=64)
    there = batch.to(DEVICE)
    out = torch.full_like(there.query, -7.0, memory_format=torch.contiguous_format)
    where = (there.block_tables, there.seq_lens, there.query_start_loc)
    decode_attention(Operands(there.query, there.cache, *where, out, there.rules), chip)
    expected = reference.paged_attention(*batch.arguments())
    torch.testing.assert_close(out.cpu(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("cache_dtype", DTYPES)
def test_small_values_keep_their_precision_in_half_precision(cache_dtype: torch.dtype) -> None:
    """Weights times scales must not fall among the float16s that have fewer bits."""
    batch = make_batch([(1, 40), (3, 40)], dtype=torch.float16, cache_dtype=cache_dtype)
    runs(batch.cache)[1][1].mul_(2.0**-10)
    actual = paged_attention(*batch.to(DEVICE).arguments()).cpu().float()
    expected = reference.paged_attention(*batch.arguments()).float()
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=2.0**-10 * 3e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_that_follows_changes_nothing_that_is_stored(dtype: torch.dtype) -> None:
    layout = KVLayout(num_layers=1, num_kv_heads=2, block_size=8, head_dim=32, dtype=dtype)
    qkv = torch.randn((6, 8, 32), generator=torch.Generator().manual_seed(5))
    qkv[3:] *= 100
    together, _ = stored_by_both(layout, qkv, torch.arange(6))
    first, _ = stored_by_both(layout, qkv, torch.tensor([0, 1, 2, -1, -1, -1]))
    assert torch.equal(
        together.layers[0].keys[0, :, :3].view(torch.uint8),
        first.layers[0].keys[0, :, :3].view(torch.uint8),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_copied_blocks_bring_their_scales(dtype: torch.dtype) -> None:
    layout = KVLayout(num_layers=2, num_kv_heads=3, block_size=8, head_dim=80, dtype=dtype)
    expected = layout.allocate(7, torch.device("cpu"))
    expected.memory.random_(generator=torch.Generator().manual_seed(1))
    actual = on_device(expected, layout)
    src, dst = torch.tensor([5, 5, 2]), torch.tensor([0, 1, 4])
    reference.copy_blocks(expected.memory, src, dst)
    copy_blocks(actual.memory, src.to(DEVICE), dst.to(DEVICE))
    assert torch.equal(actual.memory.cpu(), expected.memory)
