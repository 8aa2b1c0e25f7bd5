"""What full blocks hold: found whole, by prefix key, or in part, by how far their tokens agree with others.

Block ids only; who may find a block, and until when, is the pool's business. The blocks that follow one parent are
kept in order of their tokens. In such an order the longest agreement with any run of tokens stands directly before or
behind the place where that run would stand, so finding it takes one bisection: O(log n) comparisons for n blocks under one
parent, however many chats share a system prompt. Adding and removing move at most n references.

A block costs 8 bytes per token here, and a few small objects.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

TOKEN_BYTES = 8

Child = tuple[bytes, int]
"""The packed tokens of a block, and its id."""

_tokens_of = itemgetter(0)


def pack(token_ids: Sequence[int]) -> bytes:
    """Token ids as 8 bytes each."""
    return array("q", token_ids).tobytes()


@dataclass(frozen=True, slots=True)
class PartHit:
    """A block whose first `num_tokens` tokens are the ones that were asked for; the next one is not."""

    block_id: int
    num_tokens: int


class PrefixCache:
    """Full blocks by key, and by parent key and tokens. Keys are unique, and so are tokens under one parent."""

    def __init__(self) -> None:
        self._block_ids: dict[bytes, int] = {}
        self._places: dict[bytes, tuple[bytes, bytes]] = {}
        self._children: dict[bytes, list[Child]] = {}

    def __len__(self) -> int:
        return len(self._block_ids)

    def __contains__(self, key: bytes) -> bool:
        return key in self._block_ids

    def add(self, block_id: int, key: bytes, parent_key: bytes, tokens: bytes) -> None:
        """Let a block be found; `key` must be new."""
        self._block_ids[key] = block_id
        self._places[key] = parent_key, tokens
        children = self._children.setdefault(parent_key, [])
        children.insert(_position(children, tokens), (tokens, block_id))

    def remove(self, key: bytes) -> None:
        """Forget a block."""
        del self._block_ids[key]
        parent_key, tokens = self._places.pop(key)
        children = self._children[parent_key]
        del children[_position(children, tokens)]
        if not children:
            del self._children[parent_key]

    def find(self, key: bytes) -> int | None:
        """The block with that key."""
        return self._block_ids.get(key)

    def find_part(self, parent_key: bytes, tokens: bytes) -> PartHit | None:
        """The block behind `parent_key` that begins with the most of `tokens`; of equals the first in their order."""
        children = self._children.get(parent_key, ())
        position = _position(children, tokens)
        neighbours = children[max(0, position - 1) : position + 1]
        hits = [PartHit(block_id, _agreement(tokens, theirs)) for theirs, block_id in neighbours]
        best = max(hits, key=lambda hit: hit.num_tokens, default=None)
        return best if best and best.num_tokens else None

    def check_integrity(self) -> None:
        """Assert that both ways to a block lead to the same one. O(blocks)."""
        listed = {
            (parent_key, *child)
            for parent_key, children in self._children.items()
            for child in children
        }
        known = {(*self._places[key], block_id) for key, block_id in self._block_ids.items()}
        assert listed == known, "the cache finds other blocks in part than whole"
        for children in self._children.values():
            tokens = [child[0] for child in children]
            assert tokens == sorted(set(tokens)) != [], (
                "the blocks behind a parent are out of order"
            )


def _position(children: Sequence[Child], tokens: bytes) -> int:
    return bisect_left(children, tokens, key=_tokens_of)


def _agreement(ours: bytes, theirs: bytes) -> int:
    """How many whole tokens both begin with."""
    size = min(len(ours), len(theirs))
    difference = int.from_bytes(ours[:size], "big") ^ int.from_bytes(theirs[:size], "big")
    return (size - (difference.bit_length() + 7) // 8) // TOKEN_BYTES
