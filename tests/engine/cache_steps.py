"""What a step does to a sequence's blocks, for tests of the KV cache manager."""

import itertools

from engine.kv_cache_manager import KVCacheManager
from engine.outputs import BlockCopy
from engine.sampling_params import SamplingParams
from engine.sequence import Request, Sequence

SEQ_IDS = itertools.count()


def make_sequence(tokens: list[int], salt: str | None = None) -> Sequence:
    seq_id = next(SEQ_IDS)
    request = Request(seq_id, tokens, SamplingParams(cache_salt=salt), 0.0)
    return Sequence(seq_id, request, 0, 100, frozenset())


def compute(kv: KVCacheManager, seq: Sequence, num_tokens: int | None = None) -> list[BlockCopy]:
    """A step that computes `num_tokens` (or all) of what is left."""
    num_tokens = num_tokens or seq.num_uncomputed_tokens
    copies = kv.allocate_slots(seq, num_tokens)
    assert copies is not None
    kv.release_copies()
    kv.commit(seq, num_tokens)
    return copies


def computed(kv: KVCacheManager, tokens: list[int], salt: str | None = None) -> Sequence:
    """A sequence whose tokens are all in the pool; a next token is known."""
    seq = make_sequence(tokens, salt)
    compute(kv, seq)
    seq.append(99, 0.0)
    return seq


def free_ids(kv: KVCacheManager) -> list[int]:
    return [block.block_id for block in kv.pool.free_queue]


def ref_counts(kv: KVCacheManager, seq: Sequence) -> list[int]:
    return [kv.pool.blocks[i].ref_count for i in seq.block_table]
