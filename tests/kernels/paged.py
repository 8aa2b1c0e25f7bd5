"""Random paged sequences for kernel tests: shuffled blocks, poisoned memory wherever nothing may be read."""

from dataclasses import dataclass, replace

import torch

from kernels import reference
from kernels.attention_rules import AttentionRules
from kernels.kv_pool import KVLayout, KVPool, LayerCache

NO_BLOCK = 2**30


@dataclass(frozen=True, kw_only=True)
class PagedBatch:
    """Arguments of paged_attention, in the dtype asked for, on the device asked for."""

    query: torch.Tensor
    cache: LayerCache
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    max_query_len: int
    rules: AttentionRules

    def arguments(self) -> tuple:
        """In the order of the operation's parameters."""
        return (
            self.query,
            self.cache,
            self.block_tables,
            self.seq_lens,
            self.query_start_loc,
            self.max_query_len,
            self.rules,
        )

    def to(self, device: torch.device | str) -> "PagedBatch":
        """The same batch on another device."""
        cache = replace(self.cache, **_tensors_on(self.cache, device))
        return replace(self, cache=cache, **_tensors_on(self, device))


def _tensors_on(fields: object, device: torch.device | str) -> dict[str, torch.Tensor]:
    return {
        name: value.to(device)
        for name, value in vars(fields).items()
        if isinstance(value, torch.Tensor)
    }


def make_batch(
    lengths: list[tuple[int, int]],
    *,
    num_kv_heads: int = 2,
    group_size: int = 3,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    seed: int = 0,
) -> PagedBatch:
    """A batch of (query_len, seq_len) sequences.

    Blocks are dealt from a shuffled pool that includes block 0; unused blocks, the tails of last blocks, what lies before
    all windows and unused entries of block tables hold NaN (or numbers with such a scale) or an id that is out of range. The
    pool is a layer of a two-layer cache.
    """
    generator = torch.Generator().manual_seed(seed)
    rules = AttentionRules(head_dim**-0.5, window, soft_cap)
    seq_lens = [seq_len for _, seq_len in lengths]
    counts = [-(-seq_len // block_size) for seq_len in seq_lens]
    num_blocks = sum(counts) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    if counts and counts[0]:
        where = order.index(0)
        order[0], order[where] = order[where], order[0]
    block_tables = torch.full(
        (len(lengths), max(counts, default=0) + 2), NO_BLOCK, dtype=torch.int32
    )
    slots: list[int] = []
    for s, count in enumerate(counts):
        blocks, order = order[:count], order[count:]
        block_tables[s, :count] = torch.tensor(blocks, dtype=torch.int32)
        first = rules.first_visible(max(0, seq_lens[s] - lengths[s][0]))
        if s % 2:
            block_tables[s, : first // block_size] = NO_BLOCK
        seen = range(first, seq_lens[s])
        slots += [blocks[i // block_size] * block_size + i % block_size for i in seen]
    layout = KVLayout(
        num_layers=2,
        num_kv_heads=num_kv_heads,
        block_size=block_size,
        head_dim=head_dim,
        dtype=cache_dtype or dtype,
    )
    cache = poisoned(layout, num_blocks).layers[1]
    tokens = torch.randn((2, len(slots), num_kv_heads, head_dim), generator=generator)
    reference.store_kv_cache(tokens[0], tokens[1], cache, torch.tensor(slots, dtype=torch.int64))
    query_lens = [query_len for query_len, _ in lengths]
    num_heads = num_kv_heads * group_size
    query = torch.randn((sum(query_lens), num_heads + 2, head_dim), generator=generator)
    return PagedBatch(
        query=query.to(dtype)[:, :num_heads],
        cache=cache,
        block_tables=block_tables,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32),
        max_query_len=max(query_lens, default=0),
        rules=rules,
    )


def poisoned(layout: KVLayout, num_blocks: int) -> KVPool:
    """A pool on the CPU from which nothing can be read unnoticed: NaN, or any numbers with a scale of NaN."""
    pool = layout.allocate(num_blocks, torch.device("cpu"))
    pool.memory.view(torch.uint8).fill_(0xFF)
    return pool
