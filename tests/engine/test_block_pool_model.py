"""The block pool against a model of it that is as simple as can be: lists and dictionaries, no counts, no links.

Whatever is done, in any order: the same block ids come out, the free queue has the same order, the cache finds the same
blocks, whole and in part, and the counts are what a count over all blocks gives.
"""

from itertools import product, takewhile
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.block_pool import BlockPool
from engine.stats import BlockCounts

BLOCK_SIZE = 4


class Content(NamedTuple):
    """A full block's tokens and what they follow."""

    parent_key: bytes
    tokens: tuple[int, ...]

    @property
    def key(self) -> bytes:
        return repr(self).encode()

    def agreement(self, parent_key: bytes, tokens: tuple[int, ...]) -> int:
        """How many of `tokens` it begins with, if it follows the same parent."""
        pairs = zip(self.tokens, tokens, strict=False)
        same = takewhile(lambda pair: pair[0] == pair[1], pairs)
        return len(list(same)) if self.parent_key == parent_key else 0


PARENT_KEYS = (b"a", b"b")
RUNS = tuple(run for n in range(BLOCK_SIZE + 1) for run in product((1, 300), repeat=n))
CONTENTS = tuple(
    Content(parent_key, run)
    for parent_key in PARENT_KEYS
    for run in RUNS
    if len(run) == BLOCK_SIZE and run.count(300) < 3
)

pytestmark = pytest.mark.timeout(600)


class SimplePool:
    """`free` is the queue of eviction, `refs` counts per referenced block, `contents` what can be found again."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.refs: dict[int, int] = {}
        self.contents: dict[int, Content] = {}
        self.tokens = dict.fromkeys(range(num_blocks), 0)

    def allocate(self) -> int:
        block_id = self.free.pop(0)
        self.contents.pop(block_id, None)
        self.refs[block_id], self.tokens[block_id] = 1, 0
        return block_id

    def share(self, block_id: int) -> None:
        if block_id in self.free:
            self.free.remove(block_id)
        self.refs[block_id] = self.refs.get(block_id, 0) + 1

    def release(self, table: list[int]) -> int:
        released = 0
        for block_id in reversed(table):
            self.refs[block_id] -= 1
            if self.refs[block_id] == 0:
                del self.refs[block_id]
                self.free.insert(len(self.free) if block_id in self.contents else 0, block_id)
                released += 1
        return released

    def cache(self, block_id: int, content: Content) -> None:
        if block_id not in self.contents and content not in self.contents.values():
            self.contents[block_id] = content

    def find(self, content: Content) -> int | None:
        return next((i for i, c in self.contents.items() if c == content), None)

    def find_part(self, parent_key: bytes, tokens: tuple[int, ...]) -> int:
        """The longest agreement there is."""
        return max((c.agreement(parent_key, tokens) for c in self.contents.values()), default=0)

    def counts(self) -> BlockCounts:
        num_cached = sum(i in self.contents for i in self.free)
        num_private = sum(count == 1 for count in self.refs.values())
        return BlockCounts(
            total=len(self.tokens),
            private=num_private,
            shared=len(self.refs) - num_private,
            cached=num_cached,
            free=len(self.free) - num_cached,
            block_size=BLOCK_SIZE,
        )


class PoolLife(RuleBasedStateMachine):
    """Block tables that grow, share, fill and go, on both pools at once."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.pool, self.model = BlockPool(num_blocks, BLOCK_SIZE), SimplePool(num_blocks)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(1, 5))
    def allocate(self, count: int) -> None:
        count = min(count, self.pool.num_available)
        table = [self.pool.allocate() for _ in range(count)]
        assert table == [self.model.allocate() for _ in range(count)]
        self.tables += [table] if table else []

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), length=st.integers(1, 5))
    def share_the_beginning_of_a_table(self, data: st.DataObject, length: int) -> None:
        table = data.draw(st.sampled_from(self.tables))[:length]
        self._share(table)

    @rule(content=st.sampled_from(CONTENTS))
    def share_what_is_cached(self, content: Content) -> None:
        block = self.pool.lookup(content.key)
        found = None if block is None else block.block_id
        assert found == self.model.find(content)
        if found is not None:
            self._share([found])

    @rule(parent_key=st.sampled_from(PARENT_KEYS), tokens=st.sampled_from(RUNS))
    def hold_what_agrees_the_longest(self, parent_key: bytes, tokens: tuple[int, ...]) -> None:
        part = self.pool.lookup_part(parent_key, tokens)
        longest = self.model.find_part(parent_key, tokens)
        if part is None:
            assert longest == 0
        else:
            assert part.num_tokens == longest
            assert self.model.contents[part.block_id].agreement(parent_key, tokens) == longest
            self._share([part.block_id])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        assert self.pool.free(table) == self.model.release(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), num_tokens=st.integers(1, BLOCK_SIZE), content=st.sampled_from(CONTENTS))
    def fill_and_cache(self, data: st.DataObject, num_tokens: int, content: Content) -> None:
        block_id = data.draw(st.sampled_from(data.draw(st.sampled_from(self.tables))))
        num_tokens = max(num_tokens, self.model.tokens[block_id])
        self.pool.fill(block_id, num_tokens)
        self.model.tokens[block_id] = num_tokens
        if num_tokens == BLOCK_SIZE:
            self.pool.cache(block_id, content.key, *content)
            self.model.cache(block_id, content)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        assert [block.block_id for block in self.pool.free_queue] == self.model.free
        keys = {i: content.key for i, content in self.model.contents.items()}
        assert {b.block_id: b.key for b in self.pool.blocks if b.key is not None} == keys
        assert {b.block_id: b.ref_count for b in self.pool.blocks if b.ref_count} == self.model.refs
        assert self.pool.counts == self.model.counts()
        assert self.pool.tokens_stored == sum(self.model.tokens[i] for i in self.model.refs)

    def _share(self, table: list[int]) -> None:
        for block_id in table:
            self.pool.share(block_id)
            self.model.share(block_id)
        self.tables.append(table)


TestPoolLife = PoolLife.TestCase
TestPoolLife.settings = settings(
    max_examples=300, stateful_step_count=50, deadline=None, derandomize=True, database=None
)
