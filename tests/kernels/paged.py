"""Random paged sequences for kernel tests: shuffled blocks, poisoned memory wherever nothing may be read."""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, kw_only=True)
class PagedBatch:
    """Arguments of paged_attention, in the dtype asked for, on the device asked for."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    max_query_len: int
    scale: float

    def arguments(self) -> tuple:
        """In the order of the operation's parameters."""
        return (
            self.query,
            self.key_cache,
            self.value_cache,
            self.block_tables,
            self.seq_lens,
            self.query_start_loc,
            self.max_query_len,
            self.scale,
        )

    def to(self, device: torch.device | str) -> "PagedBatch":
        """The same batch on another device."""
        moved = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)


def make_batch(
    lengths: list[tuple[int, int]],
    *,
    num_kv_heads: int = 2,
    group_size: int = 3,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> PagedBatch:
    """A batch of (query_len, seq_len) sequences.

    Blocks are dealt from a shuffled pool that includes block 0; unused blocks, the tails of last blocks and unused
    entries of block tables hold NaN or an id that is out of range. The pool is a layer of a two-layer cache.
    """
    generator = torch.Generator().manual_seed(seed)
    seq_lens = [seq_len for _, seq_len in lengths]
    counts = [-(-seq_len // block_size) for seq_len in seq_lens]
    num_blocks = sum(counts) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    if counts and counts[0]:
        where = order.index(0)
        order[0], order[where] = order[where], order[0]
    block_tables = torch.full((len(lengths), max(counts, default=0) + 2), 2**30, dtype=torch.int32)
    shape = (2, 2, num_blocks, num_kv_heads, block_size, head_dim)
    kv_cache = torch.full(shape, float("nan"))
    for s, count in enumerate(counts):
        blocks, order = order[:count], order[count:]
        block_tables[s, :count] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(seq_lens[s]):
            block_id, offset = blocks[position // block_size], position % block_size
            token = torch.randn((2, num_kv_heads, head_dim), generator=generator)
            kv_cache[1, :, block_id, :, offset] = token
    query_lens = [query_len for query_len, _ in lengths]
    num_heads = num_kv_heads * group_size
    query = torch.randn((sum(query_lens), num_heads + 2, head_dim), generator=generator)
    kv_cache = kv_cache.to(cache_dtype or dtype)
    return PagedBatch(
        query=query.to(dtype)[:, :num_heads],
        key_cache=kv_cache[1, 0],
        value_cache=kv_cache[1, 1],
        block_tables=block_tables,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32),
        max_query_len=max(query_lens, default=0),
        scale=head_dim**-0.5,
    )
