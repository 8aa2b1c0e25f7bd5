"""What contiguous memory would have cost: for the sequences that run, and for those that have ended.

Three policies after the baselines of the PagedAttention paper (Kwon et al. 2023, section 6.1): reserve the model's longest
context, the next power of two of the length (the paper rounds up the output alone), and exactly the final length, which only
an oracle knows beforehand. While a sequence runs nobody knows it, so the live figures of the last two take the length so
far: they are the least that such a policy would hold. When it ends the final length is known, and enters the sums.

All in bytes of keys and values. Contiguous memory cannot be shared: each candidate pays for its whole text.
"""

from collections.abc import Iterable

from engine.block_pool import BlockPool
from engine.config import SchedulerConfig
from engine.sequence import Sequence
from engine.stats import CounterfactualBytes, InternalFragmentation


class Counterfactuals:
    """Measures the live load, and sums over those that have ended."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._num_slots = {"paged": 0, "max_len": 0, "pow2": 0, "exact": 0}

    def note_end(self, seq: Sequence) -> None:
        """Add a sequence that ends and still holds its blocks, unless nothing of it was ever stored."""
        length, size = _final_length(seq), self._config.block_size
        if length:
            self._num_slots["paged"] += -(-length // size) * size
            self._num_slots["max_len"] += self._config.max_model_len
            self._num_slots["pow2"] += _next_power_of_two(length)
            self._num_slots["exact"] += length

    def ended(self) -> CounterfactualBytes:
        """Sums since start over the sequences that have ended, by final length; `paged` does without sharing too."""
        token = self._config.bytes_per_token
        return CounterfactualBytes(**{k: n * token for k, n in self._num_slots.items()})

    def live(self, pool: BlockPool, running: Iterable[Sequence]) -> CounterfactualBytes:
        """What the running sequences hold, and by each policy at least would hold."""
        lengths = [seq.num_computed_tokens for seq in running]
        token = self._config.bytes_per_token
        return CounterfactualBytes(
            paged=_num_live_slots(pool) * token,
            max_len=len(lengths) * self._config.max_model_len * token,
            pow2=sum(map(_next_power_of_two, lengths)) * token,
            exact=sum(lengths) * token,
        )

    def fragmentation(self, pool: BlockPool) -> InternalFragmentation:
        """Slots of live blocks that hold no token: the ends of last blocks."""
        num_slots = _num_live_slots(pool)
        num_empty = num_slots - pool.tokens_stored
        share = num_empty / num_slots if num_slots else 0.0
        return InternalFragmentation(num_empty * self._config.bytes_per_token, share)


def _num_live_slots(pool: BlockPool) -> int:
    return (len(pool.blocks) - pool.num_available) * pool.block_size


def _final_length(seq: Sequence) -> int:
    """Tokens whose keys and values it had, also if it has lost them by preemption; the last drawn is never stored."""
    num_stored = seq.num_tokens - 1 if seq.output_token_ids else 0
    return max(num_stored, seq.num_computed_tokens)


def _next_power_of_two(length: int) -> int:
    return 1 << (length - 1).bit_length() if length else 0
