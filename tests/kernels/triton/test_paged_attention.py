"""Attention on the GPU backend beyond what every backend is asked: splits and their merge, tiles, large pools, all head dims."""

from dataclasses import replace

import pytest
import torch

from kernels import reference
from kernels.kv_pool import KVLayout, LayerCache
from kernels.triton import decode_attention as decode_module
from kernels.triton.attention_tile import AttentionShape, Operands
from kernels.triton.chip import H200, MI300X, chip_of
from kernels.triton.decode_attention import MAX_SPLITS, choose_num_splits, decode_attention
from kernels.triton.paged_attention import paged_attention
from kernels.triton.prefill_attention import prefill_attention
from kernels.triton.rotate_and_store import rotate_and_store
from kernels.triton.tilings import decode_slots
from tests.kernels.paged import PagedBatch, make_batch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MANY_CORES = replace(H200, num_cores=64, widening="plain")


def operands_of(batch: PagedBatch) -> Operands:
    """The batch with an answer that shows which rows nobody wrote."""
    return Operands(
        batch.query,
        batch.cache,
        batch.block_tables,
        batch.seq_lens,
        batch.query_start_loc,
        torch.full_like(batch.query, -7.0, memory_format=torch.contiguous_format),
        batch.rules,
    )


def assert_equal_to_reference(batch: PagedBatch, tolerance: float = 2e-5) -> None:
    actual = paged_attention(*batch.to(DEVICE).arguments()).cpu()
    expected = reference.paged_attention(*batch.arguments())
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


HEAD_DIMS, GROUP_SIZES, BLOCK_SIZES = (64, 80, 96, 128, 256), (1, 3, 4, 5, 8), (8, 16, 32, 64, 128)
QUERIES = (torch.float32, torch.float16)
STORED = (None, torch.int8, torch.float8_e4m3fn)


@pytest.mark.parametrize("column", range(5))
@pytest.mark.parametrize("row", range(5))
def test_every_pair_of_sizes_and_types(row: int, column: int) -> None:
    """A square in which each head dim meets each group, block size and type, on lengths about the edges of blocks."""
    block_size = BLOCK_SIZES[(row + column) % 5]
    lengths = [(1, 1), (1, block_size - 1), (1, block_size), (1, block_size + 1), (1, 0), (0, 3)]
    lengths += [(3, 3), (9, block_size + 1), (2, block_size), (4, 2)]
    dtype = QUERIES[(row + column) % 2]
    batch = make_batch(
        lengths,
        num_kv_heads=1 + column % 2,
        head_dim=HEAD_DIMS[row],
        group_size=GROUP_SIZES[column],
        block_size=block_size,
        dtype=dtype,
        cache_dtype=STORED[(row + column) % 3],
    )
    assert_equal_to_reference(batch, 2e-5 if dtype is torch.float32 else 3e-3)


@pytest.mark.parametrize("column", range(5))
@pytest.mark.parametrize("row", range(5))
def test_every_window_in_every_size_and_type(row: int, column: int) -> None:
    """The same with windows about the edges of blocks and beyond all texts, every second time with a soft cap."""
    block_size = BLOCK_SIZES[column]
    window = (1, block_size - 1, block_size, block_size + 1, 1000)[row]
    lengths = [(1, 1), (1, block_size), (1, 2 * block_size + 3), (1, 0), (0, 3)]
    lengths += [(9, block_size + 1), (2, 3 * block_size), (4, 2), (9, 2 * block_size + 10)]
    dtype = QUERIES[(row + column) % 2]
    batch = make_batch(
        lengths,
        num_kv_heads=1,
        head_dim=HEAD_DIMS[(row + column) % 5],
        group_size=GROUP_SIZES[(row + 2 * column) % 5],
        block_size=block_size,
        dtype=dtype,
        cache_dtype=STORED[(2 * row + column) % 3],
        window=window,
        soft_cap=2.0 if column % 2 else None,
    )
    assert_equal_to_reference(batch, 2e-5 if dtype is torch.float32 else 3e-3)


@pytest.mark.parametrize("dtype", QUERIES)
@pytest.mark.parametrize("window", [1, 31, 32, 33, 100, 250, 1000])
def test_tiles_before_in_and_behind_a_window(window: int, dtype: torch.dtype) -> None:
    """Small tiles in float32, large ones in float16; some are wholly visible if the window is longer than both of a tile's sides."""
    batch = make_batch(
        [(150, 400), (1, 300)],
        num_kv_heads=1,
        head_dim=32,
        group_size=2,
        dtype=dtype,
        window=window,
    )
    assert_equal_to_reference(batch, 2e-5 if dtype is torch.float32 else 3e-3)


@pytest.mark.parametrize("window", [5, 8, 20])
def test_chunks_from_every_offset_in_a_window(window: int) -> None:
    lengths = [(7, 7 + offset) for offset in range(26)]
    batch = make_batch(lengths, num_kv_heads=1, head_dim=16, block_size=8, window=window)
    assert_equal_to_reference(batch)


@pytest.mark.parametrize(
    ("num_cores", "window", "num_splits"),
    [(64, 1, 1), (64, 256, 1), (64, 257, 2), (64, 600, 3), (64, 3000, 4), (2, 600, 3)],
)
def test_splits_divide_what_the_window_shows(
    num_cores: int, window: int, num_splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch([(1, 1000), (1, 3)], num_kv_heads=1, head_dim=16, window=window).to(DEVICE)
    operands, written = operands_of(batch), []

    def partials(operands: Operands, most_splits: int) -> tuple[torch.Tensor, ...]:
        sums = torch.full((2, 3, most_splits), -7.0, device=DEVICE)
        written.append(sums)
        return torch.empty((*sums.shape, 16), device=DEVICE), torch.empty_like(sums), sums

    monkeypatch.setattr(decode_module, "_partials", partials)
    decode_attention(operands, replace(MANY_CORES, num_cores=num_cores))
    assert (written[0] != -7).sum(dim=-1).tolist() == [[num_splits] * 3, [1] * 3]
    expected = reference.paged_attention(*batch.arguments())
    torch.testing.assert_close(operands.out, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("seq_len", [1, 255, 256, 257, 512, 513, 1000])
def test_splits_and_their_merge(seq_len: int) -> None:
    batch = make_batch([(1, seq_len), (1, 3), (1, 0)], num_kv_heads=1, head_dim=16).to(DEVICE)
    operands = operands_of(batch)
    assert choose_num_splits(3, decode_slots(operands.shape, MANY_CORES)) == MAX_SPLITS
    decode_attention(operands, MANY_CORES)
    expected = reference.paged_attention(*batch.arguments())
    torch.testing.assert_close(operands.out, expected, rtol=2e-5, atol=2e-5)
    assert not operands.out[2].any(), "a sequence without keys gives zeros"


def test_splits_fill_the_chip_and_no_more() -> None:
    shape = AttentionShape(head_dim=128, group=4, block_size=16, itemsize=2)
    slots, fewer = decode_slots(shape, H200), decode_slots(shape, MI300X)
    assert (slots, fewer) == (3 * 132, 2 * 304)
    assert decode_slots(replace(shape, largest=127.0), H200) == 2 * 132
    assert choose_num_splits(3, slots) == MAX_SPLITS
    assert choose_num_splits(8, slots) == 3 * 132 // 8
    assert choose_num_splits(64, slots) == 6
    assert choose_num_splits(64 * 8, slots) == 1
    assert choose_num_splits(64, fewer) == 2 * 304 // 64


def test_each_kernel_leaves_the_rows_of_the_other_alone() -> None:
    batch = make_batch([(1, 9), (4, 9), (1, 2), (0, 5), (2, 2)], head_dim=32).to(DEVICE)
    decodes = torch.tensor([True, *[False] * 4, True, False, False], device=DEVICE)
    chip, expected = chip_of(DEVICE), reference.paged_attention(*batch.arguments())
    for kernel, mine in ((decode_attention, decodes), (prefill_attention, ~decodes)):
        operands = operands_of(batch)
        kernel(operands, chip)
        torch.testing.assert_close(operands.out[mine], expected[mine], rtol=2e-5, atol=2e-5)
        assert (operands.out[~mine] == -7).all()


def test_a_prompt_of_many_tiles_after_a_context() -> None:
    assert_equal_to_reference(make_batch([(150, 400), (1, 300)], num_kv_heads=1, head_dim=32))


def test_blocks_beyond_two_billion_numbers() -> None:
    block_size, head_dim = 16, 64
    far = 2**31 // (block_size * head_dim) + 1
    # Pages that nobody touches cost nothing.
    pool = torch.empty((far + 1, 1, block_size, head_dim), dtype=torch.float16, device=DEVICE)
    assert_far_blocks_are_found(LayerCache(pool, pool), far)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_blocks_of_eight_bits_beyond_two_billion_bytes(dtype: torch.dtype) -> None:
    layout = KVLayout(num_layers=1, num_kv_heads=1, block_size=128, head_dim=256, dtype=dtype)
    far = 2**31 * 2 // layout.block_bytes + 1
    run = torch.empty((far + 1, layout.block_bytes // 2), dtype=torch.uint8, device=DEVICE)
    numbers = run[:, : 128 * 256].view(dtype).unflatten(1, (1, 128, 256))
    scales = run[:, 128 * 256 :].view(torch.float32).unflatten(1, (1, 128))
    assert_far_blocks_are_found(LayerCache(numbers, numbers, scales, scales), far)


def assert_far_blocks_are_found(cache: LayerCache, far: int) -> None:
    """Keys are stored in the pool's last blocks, values in the same place, and both are read there."""
    _, _, block_size, head_dim = cache.keys.shape
    small = make_batch([(1, 16), (3, 16)], num_kv_heads=1, head_dim=head_dim, dtype=torch.float16)
    small = small.to(DEVICE)
    tables = torch.full_like(small.block_tables, 2**30)
    tables[:, 0] = torch.tensor([far, far - 3])
    tokens = torch.randn((32, 1, head_dim), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    slots = (tables[:, :1].long() * block_size + torch.arange(16, device=DEVICE)).flatten()
    cos_sin = torch.cat([torch.ones(1, head_dim // 2), torch.zeros(1, head_dim // 2)], dim=1)
    nowhere = torch.zeros(32, dtype=torch.int64, device=DEVICE)
    rotate_and_store(
        tokens.clone(), tokens.clone(), tokens, nowhere, cos_sin.to(DEVICE), cache, slots
    )
    query, _, _, *rest = small.arguments()
    actual = paged_attention(query, cache, tables, *rest)
    expected = reference.paged_attention(query, cache, tables, *rest)
    assert expected.any()
    torch.testing.assert_close(actual, expected, rtol=3e-3, atol=3e-3)
