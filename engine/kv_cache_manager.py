"""Block tables over the pool: prefix lookup, slots for new tokens, copy-on-write, fork.

The life of one step: `lookup` and `attach` what the prefix cache has, `allocate_slots` for the tokens to compute; the
model runner executes; `release_copies`, then `commit` per sequence, which is when full blocks enter the cache.

Whole cached blocks are shared. Where a sequence leaves a cached chain inside a block, `lookup_part` finds the block that
agrees with it for the most tokens, and `attach_part` copies that block into a fresh one of the sequence's own: nothing is
written into a cached block. The copy runs before the forward pass; until then its source is referenced.

Prefix keys (blake2b, 256 bits): the root is a digest of the tagged model identity and cache salt, the key of block i
is a digest of the key of block i - 1 and the token ids of block i. Equal keys mean equal model, salt and tokens from
position 0 on, so keys and values are equal too.
"""

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from itertools import takewhile

from engine.block_pool import Block, BlockPool
from engine.config import SchedulerConfig
from engine.outputs import BlockCopy
from engine.prefix_cache import PartHit, pack
from engine.sequence import Sequence

KEY_BYTES = 32


def root_key(model_identity: str, cache_salt: str | None) -> bytes:
    """Where every chain of one model and one salt begins. No salt and an empty salt differ."""
    digest = blake2b(digest_size=KEY_BYTES, person=b"pageturn-root")
    for tag, part in ((b"model", model_identity), (b"salt", cache_salt)):
        content = b"" if part is None else part.encode("utf-8", "surrogatepass")
        digest.update(b"%s:%d:%d:%s" % (tag, part is not None, len(content), content))
    return digest.digest()


def block_key(parent: bytes, token_ids: list[int]) -> bytes:
    """The key of a full block that follows the block (or root) with key `parent`."""
    return blake2b(
        parent + pack(token_ids), digest_size=KEY_BYTES, person=b"pageturn-block"
    ).digest()


class KVCacheManager:
    """Owns the pool and the block tables of all sequences. A sequence is changed only through it."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.pool = BlockPool(config.num_blocks, config.block_size)
        self.num_cow_copies = 0
        self._block_size = config.block_size
        self._model_identity = config.model_identity
        self._enable_prefix_caching = config.enable_prefix_caching
        self._pending_copies: list[BlockCopy] = []

    def lookup(self, seq: Sequence) -> list[int]:
        """The cached blocks that `seq` begins with, up to the first miss; at least one token stays to compute."""
        if not self._may_reuse(seq):
            return []
        num_blocks = (seq.num_joint_tokens - 1) // self._block_size
        self._extend_keys(seq, num_blocks)
        hits: list[int] = []
        for key in seq.block_keys[:num_blocks]:
            block = self.pool.lookup(key)
            if block is None:
                break
            hits.append(block.block_id)
        return hits

    def lookup_part(self, seq: Sequence, hits: list[int]) -> PartHit | None:
        """The cached block that goes on behind `hits` like `seq` for the most tokens; one stays to compute."""
        if not self._may_reuse(seq):
            return None
        start = len(hits) * self._block_size
        end = min(start + self._block_size, seq.num_joint_tokens - 1)
        parent_key = self._parent_key(seq, len(hits))
        return self.pool.lookup_part(parent_key, seq.token_ids[start:end])

    def is_live(self, block_id: int) -> bool:
        """Whether a sequence, or a copy of this step, refers to the block."""
        return self.pool.blocks[block_id].ref_count > 0

    def num_live(self, hits: Iterable[int]) -> int:
        """How many of the first of these blocks are live: sharing them takes nothing from what is available.

        Live ones behind one that is not do not count: if that one is evicted, nothing leads to them.
        """
        return sum(1 for _ in takewhile(self.is_live, hits))

    def num_missing_blocks(self, seq: Sequence) -> int:
        """Blocks `seq` lacks for its context, one more token, a copy of a shared tail, and what its followers do not share."""
        size = self._block_size
        context = seq.num_tokens // size + 1
        num_blocks = context + sum(context - f.fork_position // size for f in seq.followers)
        num_missing = min(num_blocks, len(self.pool.blocks)) - len(seq.block_table)
        return max(0, num_missing) + self._is_tail_shared(seq)

    def num_fresh_blocks(self, sequences: Iterable[Sequence]) -> int:
        """How many blocks it takes to compute one more token of each: new ones, and copies of shared tails."""
        num_new, tails = 0, Counter[int]()
        for seq in sequences:
            if seq.num_computed_tokens == len(seq.block_table) * self._block_size:
                num_new += 1
            elif self._is_tail_shared(seq):
                tails[self._tail(seq)] += 1
        owners = {block_id: self._num_owners(self.pool.blocks[block_id]) for block_id in tails}
        return num_new + sum(min(count, owners[i] - 1) for i, count in tails.items())

    def num_lost_tokens(self, seq: Sequence) -> int:
        """How many tokens of `seq` would have to be computed again if its blocks were freed and soon evicted.

        Not lost is the run of cached blocks at its beginning that others refer to as well, unless it must not reuse them.
        """
        if seq.request.needs_every_token:
            return seq.num_computed_tokens
        num_kept = 0
        for block_id in seq.block_table:
            block = self.pool.blocks[block_id]
            if block.key is None or self._num_owners(block) < 2:
                break
            num_kept += self._block_size
        return seq.num_computed_tokens - num_kept

    def num_stored_tokens(self, sequences: Iterable[Sequence]) -> int:
        """How many tokens the blocks of these sequences hold; what they share counts once."""
        blocks = {block_id for seq in sequences for block_id in seq.block_table}
        return sum(self.pool.blocks[block_id].num_tokens for block_id in blocks)

    def attach(self, seq: Sequence, block_ids: list[int]) -> None:
        """Begin the empty block table of `seq` with blocks that `lookup` found."""
        assert not seq.block_table, f"sequence {seq.seq_id} holds blocks already"
        for block_id in block_ids:
            self.pool.share(block_id)
        seq.block_table.extend(block_ids)
        seq.num_computed_tokens = len(block_ids) * self._block_size

    def attach_part(self, seq: Sequence, part: PartHit) -> BlockCopy:
        """Begin a block of its own with what `lookup_part` found; returns the copy to run before the forward pass.

        It takes a block, which `seq` needs anyhow, and for this step the source, if that is not live.
        """
        self.pool.share(part.block_id)
        copy = self._copy(part.block_id, part.num_tokens)
        seq.block_table.append(copy.dst)
        seq.num_computed_tokens += part.num_tokens
        return copy

    def allocate_slots(self, seq: Sequence, num_new_tokens: int) -> list[BlockCopy] | None:
        """Make room to compute the next `num_new_tokens` tokens of `seq`.

        Returns the copy to run before the forward pass when the tail is shared (the first writer gets a fresh block).
        None, and nothing is held, when the pool is short.
        """
        num_needed = self._num_blocks(seq.num_computed_tokens + num_new_tokens)
        num_fresh = num_needed - len(seq.block_table)
        must_copy = self._is_tail_shared(seq)
        if num_fresh + must_copy > self.pool.num_available:
            return None
        copies = [self._copy_tail(seq)] if must_copy else []
        for _ in range(num_fresh):
            seq.block_table.append(self.pool.allocate())
        return copies

    def release_copies(self) -> None:
        """Let go of the sources of this step's copies, once the step has been executed (or has failed)."""
        for copy in self._pending_copies:
            self.pool.blocks[copy.src].num_pending_reads -= 1
            self.pool.free((copy.src,))
        self._pending_copies.clear()

    def commit(self, seq: Sequence, num_new_tokens: int) -> None:
        """Note that the step wrote the next `num_new_tokens` tokens of `seq`; its full blocks enter the cache."""
        start, end = seq.num_computed_tokens, seq.num_computed_tokens + num_new_tokens
        seq.num_computed_tokens = end
        for index in range(start // self._block_size, self._num_blocks(end)):
            num_tokens = min(self._block_size, end - index * self._block_size)
            self.pool.fill(seq.block_table[index], num_tokens)
            if self._enable_prefix_caching and num_tokens == self._block_size:
                self._cache(seq, index)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give `child`, whose tokens are the parent's as far as those are computed, all of the computed tokens."""
        for block_id in parent.block_table:
            self.pool.share(block_id)
        child.block_table = parent.block_table.copy()
        child.block_keys = parent.block_keys[: parent.num_computed_tokens // self._block_size]
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_cached_tokens = parent.num_cached_tokens

    def free(self, seq: Sequence) -> int:
        """Take everything from `seq`; returns how many blocks nobody refers to any more.

        The old table itself stays as it is: a plan under way may hold it.
        """
        num_released = self.pool.free(seq.block_table)
        seq.block_table = []
        seq.num_computed_tokens = seq.num_forked_blocks = 0
        return num_released

    def count_shared(self, seq: Sequence) -> int:
        """How many blocks of `seq` another sequence refers to as well."""
        return sum(self._num_owners(self.pool.blocks[i]) > 1 for i in seq.block_table)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Assert every memory invariant, given all live sequences. O(num_blocks + all tokens)."""
        sequences = list(sequences)
        self.pool.check_integrity()
        self._check_references(sequences)
        for seq in sequences:
            self._check_sequence(seq)

    def _may_reuse(self, seq: Sequence) -> bool:
        return self._enable_prefix_caching and not seq.request.needs_every_token

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _num_owners(self, block: Block) -> int:
        return block.ref_count - block.num_pending_reads

    def _is_tail_shared(self, seq: Sequence) -> bool:
        if seq.num_computed_tokens % self._block_size == 0:
            return False
        return self._num_owners(self.pool.blocks[self._tail(seq)]) > 1

    def _tail(self, seq: Sequence) -> int:
        """The block that the next token goes into, if it has begun; empty ones may follow, which drafts were written to."""
        return seq.block_table[seq.num_computed_tokens // self._block_size]

    def _copy_tail(self, seq: Sequence) -> BlockCopy:
        """Replace the shared tail; the table's reference to it becomes the pending copy's."""
        tail = self._tail(seq)
        copy = self._copy(tail, self.pool.blocks[tail].num_tokens)
        seq.block_table[seq.num_computed_tokens // self._block_size] = copy.dst
        self.num_cow_copies += 1
        return copy

    def _copy(self, block_id: int, num_tokens: int) -> BlockCopy:
        """A copy into a fresh block, of which `num_tokens` count; a reference to the source is now the copy's."""
        copy = BlockCopy(src=block_id, dst=self.pool.allocate())
        self.pool.blocks[block_id].num_pending_reads += 1
        self.pool.fill(copy.dst, num_tokens)
        self._pending_copies.append(copy)
        return copy

    def _cache(self, seq: Sequence, index: int) -> None:
        self._extend_keys(seq, index + 1)
        key, parent_key = seq.block_keys[index], self._parent_key(seq, index)
        self.pool.cache(seq.block_table[index], key, parent_key, self._tokens(seq, index))

    def _extend_keys(self, seq: Sequence, num_blocks: int) -> None:
        for index in range(len(seq.block_keys), num_blocks):
            parent_key = self._parent_key(seq, index)
            seq.block_keys.append(block_key(parent_key, self._tokens(seq, index)))

    def _tokens(self, seq: Sequence, index: int) -> list[int]:
        return seq.token_ids[index * self._block_size : (index + 1) * self._block_size]

    def _parent_key(self, seq: Sequence, index: int) -> bytes:
        return seq.block_keys[index - 1] if index else self._root_key(seq)

    def _root_key(self, seq: Sequence) -> bytes:
        return root_key(self._model_identity, seq.request.params.cache_salt)

    def _check_references(self, sequences: list[Sequence]) -> None:
        references = Counter(block_id for seq in sequences for block_id in seq.block_table)
        reads = Counter(copy.src for copy in self._pending_copies)
        blocks = self.pool.blocks
        counted_reads = {b.block_id: b.num_pending_reads for b in blocks if b.num_pending_reads}
        assert counted_reads == reads, f"reads counted {counted_reads}, pending copies {reads}"
        owners = {b.block_id: self._num_owners(b) for b in blocks if self._num_owners(b)}
        wrong = dict(owners.items() ^ references.items())
        assert not wrong, f"owners counted and block tables disagree on the blocks {wrong}"

    def _check_sequence(self, seq: Sequence) -> None:
        computed, table = seq.num_computed_tokens, seq.block_table
        assert 0 <= computed < seq.num_tokens, f"sequence {seq.seq_id}: nothing left to compute"
        assert len(set(table)) == len(table), f"sequence {seq.seq_id} holds a block twice"
        num_filled = self._num_blocks(computed)
        assert len(table) >= num_filled, f"sequence {seq.seq_id}: computed tokens without a block"
        if not table:
            return  # as all that wait: their keys are not worth a digest
        key = self._root_key(seq)
        for index, block_id in enumerate(table):
            block = self.pool.blocks[block_id]
            end = (index + 1) * self._block_size
            if index < num_filled:
                stored = min(end, computed) - index * self._block_size
                assert block.num_tokens == stored, f"block {block_id}: stored tokens miscounted"
            key = block_key(key, seq.token_ids[index * self._block_size : end])
            if block.key is not None:
                assert end <= computed, f"block {block_id} was cached before it was computed"
                assert block.key == key, f"block {block_id} is cached under a key of other tokens"
