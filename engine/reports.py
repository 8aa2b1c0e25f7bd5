"""Pictures of the scheduling half for people: counters, a request, the block map."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from engine.block_pool import BlockPool
from engine.sequence import Request, Sequence, SequenceStatus
from engine.stats import BlockInfo, Counters, RequestInfo


@dataclass(slots=True)
class Tally:
    """Totals since start, while they are counted; `Counters` says what each means."""

    preemptions: int = 0
    forks: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    requests: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def counters(self, num_cow_copies: int) -> Counters:
        """As they stand now."""
        return Counters(cow_copies=num_cow_copies, **asdict(self))


def describe_request(
    request: Request, pool: BlockPool, now: float, waiting_reason: str | None
) -> RequestInfo:
    """A live request. Blocks are counted once, however many of its candidates share them."""
    live = [seq for seq in request.sequences if seq.status is not SequenceStatus.FINISHED]
    held = [block_id for seq in live for block_id in seq.block_table]
    blocks = [pool.blocks[i] for i in set(held)]
    num_shared = sum(block.ref_count > 1 for block in blocks)
    return RequestInfo(
        request_id=request.request_id,
        state=_state(live),
        waiting_reason=waiting_reason,
        num_candidates=len(live),
        prompt_tokens=len(request.prompt_token_ids),
        computed_tokens=max(seq.num_computed_tokens for seq in live),
        generated_tokens=sum(len(seq.output_token_ids) for seq in request.sequences),
        cached_tokens=max(seq.num_cached_tokens for seq in live),
        blocks_private=len(blocks) - num_shared,
        blocks_shared=num_shared,
        blocks_saved=len(held) - len(blocks),
        age_s=now - request.arrival_time,
    )


def describe_blocks(pool: BlockPool, sequences: Iterable[Sequence]) -> tuple[BlockInfo, ...]:
    """Every block, in order of id. O(num_blocks): for the block map, not for every step."""
    owners: defaultdict[int, set[int]] = defaultdict(set)
    for seq in sequences:
        for block_id in seq.block_table:
            owners[block_id].add(seq.request.request_id)
    return tuple(
        BlockInfo(b.block_id, b.state, b.ref_count, tuple(sorted(owners.get(b.block_id, ()))))
        for b in pool.blocks
    )


def _state(live: list[Sequence]) -> str:
    for status in (SequenceStatus.RUNNING, SequenceStatus.PREEMPTED):
        if any(seq.status is status for seq in live):
            return status.value
    return SequenceStatus.WAITING.value
