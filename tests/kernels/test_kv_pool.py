"""How a pool lies in memory: sizes, views, and scales that travel with their block."""

import pytest
import torch

from kernels import reference
from kernels.kv_pool import ALIGNMENT, KVLayout, KVPool

CPU = torch.device("cpu")


def layout(dtype: torch.dtype, **sizes: int) -> KVLayout:
    usual = {"num_layers": 3, "num_kv_heads": 2, "block_size": 16, "head_dim": 64}
    return KVLayout(**{**usual, **sizes}, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floats_are_one_tensor(dtype: torch.dtype) -> None:
    pool = layout(dtype).allocate(5, CPU)
    assert pool.memory.shape == (3, 2, 5, 2, 16, 64)
    assert pool.memory.dtype is dtype
    assert not pool.memory.any()
    for index, cache in enumerate(pool.layers):
        assert cache.keys.data_ptr() == pool.memory[index, 0].data_ptr()
        assert cache.values.data_ptr() == pool.memory[index, 1].data_ptr()
        assert cache.key_scales is cache.value_scales is None
    assert layout(dtype).block_bytes == 3 * 2 * 2 * 16 * 64 * dtype.itemsize
    assert layout(dtype).token_bytes == 3 * 2 * 2 * 64 * dtype.itemsize


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_eight_bits_have_a_scale_for_each_token_and_head(dtype: torch.dtype) -> None:
    pool = layout(dtype).allocate(5, CPU)
    assert pool.memory.shape == (3, 2, 5, 2 * 16 * (64 + 4))
    for cache in pool.layers:
        for numbers, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales)):
            assert numbers.shape == (5, 2, 16, 64)
            assert numbers.dtype is dtype
            assert numbers[0].is_contiguous()
            assert scales is not None
            assert scales.shape == (5, 2, 16)
            assert scales[0].is_contiguous()
            assert not scales.any()
    assert layout(dtype).token_bytes == 3 * 2 * 2 * (64 + 4)
    assert len(regions(pool)) == 3 * 2 * 2, "no two views share memory"


def regions(pool: KVPool) -> set[int]:
    """Where the views begin, each at a byte of its own; writing to one must not show in another."""
    starts = set()
    for cache in pool.layers:
        for view in (cache.keys, cache.values, cache.key_scales, cache.value_scales):
            assert view is not None
            before = pool.memory.sum(dtype=torch.int64)
            view.view(torch.uint8).fill_(1)
            assert pool.memory.sum(dtype=torch.int64) - before == view.numel() * view.itemsize
            starts.add(view.data_ptr())
    return starts


@pytest.mark.parametrize(
    ("num_kv_heads", "block_size", "head_dim"), [(1, 1, 2), (3, 1, 66), (1, 8, 80), (5, 3, 10)]
)
def test_runs_are_aligned_whatever_the_sizes(
    num_kv_heads: int, block_size: int, head_dim: int
) -> None:
    sizes = {"num_kv_heads": num_kv_heads, "block_size": block_size, "head_dim": head_dim}
    odd = layout(torch.int8, **sizes)
    pool = odd.allocate(2, CPU)
    for cache in pool.layers:
        assert cache.keys.stride(0) % ALIGNMENT == 0
        assert cache.key_scales is not None
        assert (cache.key_scales.data_ptr() - cache.keys.data_ptr()) % ALIGNMENT == 0
    assert odd.block_bytes * 2 == pool.memory.numel()
    assert odd.token_bytes * block_size >= odd.block_bytes > (odd.token_bytes - 1) * block_size


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_copied_block_has_its_scales(dtype: torch.dtype) -> None:
    pool = layout(dtype, block_size=4).allocate(3, CPU)
    key, value = torch.randn(2, 4, 2, 64)
    for cache in pool.layers:
        reference.store_kv_cache(key, value, cache, torch.arange(4, 8))
    reference.copy_blocks(pool.memory, torch.tensor([1]), torch.tensor([2]))
    for cache in pool.layers:
        for view in (cache.keys, cache.values, cache.key_scales, cache.value_scales):
            assert view is not None
            assert torch.equal(view[2].view(torch.uint8), view[1].view(torch.uint8))
            assert view[2].float().any()
