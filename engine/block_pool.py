"""The pool of KV blocks: who is free, who is referenced, and who can be found again by prefix.

A block is free xor referenced. A free block may still be cached: its content can be reused by key until the block is
handed out for something else (evicted). The free queue is the order of eviction: blocks without a key in front, as
they have nothing to lose, then cached blocks, least recently used first. Every operation on one block, and every
count, costs O(1), but for a block's entry into the cache and its eviction (`PrefixCache`). Block ids only: where the tensors lie is the model runner's business.
"""

from collections.abc import Iterable, Iterator, Sequence

from engine.prefix_cache import PartHit, PrefixCache, pack
from engine.stats import BlockCounts, BlockState

_NUMBERS = {state: number for number, state in enumerate(BlockState)}
_FREE, _CACHED, _PRIVATE, _SHARED = _NUMBERS.values()


class Block:
    """One block. `ref_count` counts block tables plus `num_pending_reads`, the copies that will read it this step.

    `num_tokens` is how many tokens are stored in it; `key` is its prefix key while it is in the cache.
    """

    __slots__ = (
        "block_id",
        "key",
        "next_free",
        "num_pending_reads",
        "num_tokens",
        "prev_free",
        "ref_count",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.num_pending_reads = 0
        self.num_tokens = 0
        self.key: bytes | None = None
        self.prev_free: Block | None = None
        self.next_free: Block | None = None

    @property
    def state(self) -> BlockState:
        """What the block map shows."""
        if self.ref_count:
            return BlockState.PRIVATE if self.ref_count == 1 else BlockState.SHARED
        return BlockState.FREE if self.key is None else BlockState.CACHED


class FreeBlockQueue:
    """A doubly linked list through the blocks themselves, so that one can leave from the middle in O(1)."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._head, self._tail = Block(-1), Block(-1)
        self._head.next_free, self._tail.prev_free = self._tail, self._head
        self._length = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def append(self, block: Block) -> None:
        """Put `block` last."""
        last = self._tail.prev_free
        assert last is not None, "the queue's tail lost its link"
        self._insert(last, block, self._tail)

    def appendleft(self, block: Block) -> None:
        """Put `block` first."""
        first = self._head.next_free
        assert first is not None, "the queue's head lost its link"
        self._insert(self._head, block, first)

    def popleft(self) -> Block:
        """Take the first block; the queue must not be empty."""
        block = self._head.next_free
        assert block is not None, "the queue's head lost its link"
        assert block is not self._tail, "the free queue is empty"
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        """Take `block` out, wherever it stands."""
        before, after = block.prev_free, block.next_free
        assert before is not None, f"block {block.block_id} is not free"
        assert after is not None, f"block {block.block_id} is not free"
        before.next_free, after.prev_free = after, before
        block.prev_free = block.next_free = None
        self._length -= 1

    def _insert(self, before: Block, block: Block, after: Block) -> None:
        assert block.next_free is None, f"block {block.block_id} is free already"
        block.prev_free, block.next_free = before, after
        before.next_free = after.prev_free = block
        self._length += 1


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, and the prefix cache over them.

    `states` has a byte per block, the number of its state in `BlockState`: kept at every change, so that a picture of a large
    pool is a copy of bytes.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.free_queue = FreeBlockQueue(self.blocks)
        self.tokens_stored = 0
        self.states = bytearray(num_blocks)
        self._cache = PrefixCache()
        self._num_private = self._num_shared = self._num_cached = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now: free ones and cached ones that nobody refers to."""
        return len(self.free_queue)

    @property
    def counts(self) -> BlockCounts:
        """How the blocks are used."""
        return BlockCounts(
            total=len(self.blocks),
            private=self._num_private,
            shared=self._num_shared,
            cached=self._num_cached,
            free=self.num_available - self._num_cached,
            block_size=self.block_size,
        )

    def allocate(self) -> int:
        """Hand out the first block of the free queue, empty, with one reference; what it cached is evicted."""
        block = self.free_queue.popleft()
        if block.key is not None:
            self._cache.remove(block.key)
            block.key = None
            self._num_cached -= 1
        block.ref_count = 1
        block.num_tokens = 0
        self._num_private += 1
        self.states[block.block_id] = _PRIVATE
        return block.block_id

    def share(self, block_id: int) -> None:
        """Add a reference to a block that is referenced or cached."""
        block = self.blocks[block_id]
        if block.ref_count == 0:
            assert block.key is not None, f"block {block_id} is free and holds nothing to share"
            self.free_queue.remove(block)
            self._num_cached -= 1
            self._num_private += 1
            self.tokens_stored += block.num_tokens
            self.states[block_id] = _PRIVATE
        elif block.ref_count == 1:
            self._num_private -= 1
            self._num_shared += 1
            self.states[block_id] = _SHARED
        block.ref_count += 1

    def free(self, block_table: Sequence[int]) -> int:
        """Drop one reference to each block, last block first; returns how many are referenced no more."""
        return sum(self._release(self.blocks[block_id]) for block_id in reversed(block_table))

    def fill(self, block_id: int, num_tokens: int) -> None:
        """Note that a referenced block now stores its first `num_tokens` tokens."""
        block = self.blocks[block_id]
        self.tokens_stored += num_tokens - block.num_tokens
        block.num_tokens = num_tokens

    def cache(self, block_id: int, key: bytes, parent_key: bytes, token_ids: Sequence[int]) -> None:
        """Let a full, referenced block be found under `key`, or in part behind `parent_key` by its tokens.

        A block that is there already stays.
        """
        block = self.blocks[block_id]
        assert block.ref_count > 0, f"block {block_id} enters the cache unreferenced"
        assert block.num_tokens == self.block_size, f"block {block_id} enters the cache half full"
        if block.key is None and key not in self._cache:
            block.key = key
            self._cache.add(block_id, key, parent_key, pack(token_ids))

    def lookup(self, key: bytes) -> Block | None:
        """The block cached under `key`."""
        block_id = self._cache.find(key)
        return None if block_id is None else self.blocks[block_id]

    def lookup_part(self, parent_key: bytes, token_ids: Sequence[int]) -> PartHit | None:
        """The cached block behind `parent_key` that begins with the most of these tokens, one at least."""
        return self._cache.find_part(parent_key, pack(token_ids))

    def check_integrity(self) -> None:
        """Assert what must hold of the pool by itself. O(num_blocks)."""
        free = {block.block_id for block in self.free_queue}
        live = [block for block in self.blocks if block.ref_count]
        keyed = [block for block in self.blocks if block.key is not None]
        assert free.isdisjoint(block.block_id for block in live), "a block is free and referenced"
        assert len(free) + len(live) == len(self.blocks), "a block is neither free nor referenced"
        assert len(free) == len(self.free_queue), "the free queue miscounts itself"
        num_shared = sum(block.ref_count > 1 for block in live)
        num_cached = sum(block.ref_count == 0 for block in keyed)
        assert (self._num_private, self._num_shared, self._num_cached) == (
            len(live) - num_shared,
            num_shared,
            num_cached,
        ), "private, shared or cached blocks are miscounted"
        states = bytes(_NUMBERS[block.state] for block in self.blocks)
        assert self.states == states, "a block's state is not kept"
        assert len(keyed) == len(self._cache), "the cache and its blocks disagree"
        assert all(self._cache.find(block.key or b"") == block.block_id for block in keyed), (
            "the cache and its blocks disagree"
        )
        self._cache.check_integrity()
        assert all(block.num_tokens == self.block_size for block in keyed), (
            "a block in the cache is not full"
        )
        stored = sum(block.num_tokens for block in live)
        assert self.tokens_stored == stored, f"{self.tokens_stored} tokens counted, {stored} stored"

    def _release(self, block: Block) -> bool:
        assert block.ref_count > 0, f"block {block.block_id} is freed twice"
        block.ref_count -= 1
        if block.ref_count == 1:
            self._num_shared -= 1
            self._num_private += 1
            self.states[block.block_id] = _PRIVATE
        elif block.ref_count == 0:
            self._num_private -= 1
            self.tokens_stored -= block.num_tokens
            if block.key is None:
                self.free_queue.appendleft(block)
                self.states[block.block_id] = _FREE
            else:
                self._num_cached += 1
                self.free_queue.append(block)
                self.states[block.block_id] = _CACHED
            return True
        return False
