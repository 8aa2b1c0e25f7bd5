"""How much of a prompt the pool still holds, asked without taking, touching or computing anything."""

from engine.block_pool import BlockPool
from engine.config import SchedulerConfig
from engine.kv_cache_manager import block_key, root_key


def count_resident(pool: BlockPool, config: SchedulerConfig, tokens: list[int]) -> int:
    """How many of the first tokens, without a cache salt, need not be computed again: whole blocks, and what one more agrees for.

    Blocks of sequences that run count as well as cached ones. What would follow these tokens is not asked for, so all of
    them may be resident.
    """
    if not config.enable_prefix_caching:
        return 0
    size = config.block_size
    parent = root_key(config.model_identity, None)
    start = 0
    while start + size <= len(tokens):
        key = block_key(parent, tokens[start : start + size])
        if pool.lookup(key) is None:
            break
        parent, start = key, start + size
    part = pool.lookup_part(parent, tokens[start : start + size])
    return start + (part.num_tokens if part else 0)
