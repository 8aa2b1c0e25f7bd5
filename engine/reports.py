"""Pictures of the scheduling half for people: counters, requests live and ended, the block map."""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from engine.block_pool import BlockPool
from engine.distributions import Recorder
from engine.sequence import Request, Sequence, SequenceStatus
from engine.stats import (
    STEP_EDGES,
    BlockCells,
    BlockDetail,
    BlockHolder,
    BlockMap,
    Counters,
    Distributions,
    RequestDetail,
    RequestInfo,
)

MAX_ENDED = 100
"""Ended requests that are remembered."""


@dataclass(slots=True)
class Tally:
    """Totals since start, while they are counted; `Counters` and `Distributions` say what each means."""

    num_steps: int = 0
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
    ttft: Recorder = field(default_factory=Recorder)
    itl: Recorder = field(default_factory=Recorder)
    queue: Recorder = field(default_factory=Recorder)
    release: Recorder = field(default_factory=Recorder)
    step_tokens: Recorder = field(default_factory=lambda: Recorder(STEP_EDGES))

    def counters(self, num_cow_copies: int) -> Counters:
        """As they stand now."""
        return Counters(
            preemptions=self.preemptions,
            forks=self.forks,
            cow_copies=num_cow_copies,
            prefix_queries=self.prefix_queries,
            prefix_hits=self.prefix_hits,
            generated_tokens=self.generated_tokens,
            prompt_tokens=self.prompt_tokens,
            requests=self.requests,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
        )

    def distributions(self) -> Distributions:
        """As they stand now."""
        recorders = (self.ttft, self.itl, self.queue, self.release, self.step_tokens)
        return Distributions(*(recorder.picture() for recorder in recorders))


class EndedRequests:
    """The last MAX_ENDED requests that have ended; of each a summary and its events, none of its tokens."""

    def __init__(self) -> None:
        self._details: deque[RequestDetail] = deque(maxlen=MAX_ENDED)

    def add(self, request: Request, now: float, ended_at: float) -> None:
        """Remember a request all of whose sequences have ended; `now` is monotonic, `ended_at` since the epoch."""
        ends = [event for event in request.timeline.events if event.kind == "end"]
        info = replace(
            _describe(request, request.sequences, now),
            state=SequenceStatus.FINISHED.value,
            num_candidates=request.params.n,
            generated_tokens=sum(event.num_tokens for event in ends),
            finish_reasons=tuple(str(event.reason) for event in ends),
            ended_at=ended_at,
        )
        self._details.append(RequestDetail(info, tuple(request.timeline.events)))

    def newest_first(self) -> Iterator[RequestDetail]:
        """All that are remembered."""
        return reversed(self._details)

    def find(self, request_id: int) -> RequestDetail | None:
        """One of them."""
        return next((d for d in self._details if d.info.request_id == request_id), None)


def describe_request(
    request: Request, pool: BlockPool, now: float, waiting_reason: str | None
) -> RequestInfo:
    """A live request. Blocks are counted once, however many of its candidates share them."""
    live = [seq for seq in request.sequences if seq.status is not SequenceStatus.FINISHED]
    held = [block_id for seq in live for block_id in seq.block_table]
    blocks = [pool.blocks[i] for i in set(held)]
    num_shared = sum(block.ref_count > 1 for block in blocks)
    return replace(
        _describe(request, live, now),
        state=_state(live),
        waiting_reason=waiting_reason,
        blocks_private=len(blocks) - num_shared,
        blocks_shared=num_shared,
        blocks_saved=len(held) - len(blocks),
    )


def count_savings(pool: BlockPool, requests: Iterable[Request]) -> tuple[int, int]:
    """How many blocks sharing saves: within requests (forks), and between them (the prefix cache)."""
    num_references = num_distinct = 0
    for request in requests:
        num_references += sum(len(seq.block_table) for seq in request.sequences)
        num_distinct += request.count_blocks()
    num_live = len(pool.blocks) - pool.num_available
    return num_references - num_distinct, num_distinct - num_live


def take_block_map(pool: BlockPool, sequences: Iterable[Sequence]) -> BlockMap:
    """Every block, to be described later. O(references to blocks), and a copy of a byte per block."""
    tables = ((seq.request.request_id, tuple(seq.block_table)) for seq in sequences)
    return BlockMap(bytes(pool.states), tuple(tables))


def describe_cells(pool: BlockPool, sequences: Iterable[Sequence]) -> BlockCells:
    """Every block in compact form."""
    owners = array("Q", bytes(8 * len(pool.blocks)))
    for seq in sorted(sequences, key=lambda seq: -seq.request.request_id):
        request_id = seq.request.request_id
        for block_id in seq.block_table:
            owners[block_id] = request_id
    return BlockCells(bytes(pool.states), owners)


def describe_block(
    pool: BlockPool, sequences: Iterable[Sequence], block_id: int
) -> BlockDetail | None:
    """One block and who holds it, in order of rank; None if there is no such block."""
    if not 0 <= block_id < len(pool.blocks):
        return None
    block = pool.blocks[block_id]
    holders = tuple(
        BlockHolder(seq.request.request_id, seq.index, seq.block_table.index(block_id))
        for seq in sequences
        if block_id in seq.block_table
    )
    return BlockDetail(block_id, block.state, block.ref_count, block.num_tokens, holders)


def _describe(request: Request, sequences: list[Sequence], now: float) -> RequestInfo:
    """What is told of a request in every state, from some of its sequences."""
    first_times = [s.first_token_time for s in request.sequences if s.first_token_time is not None]
    last_times = [s.last_token_time for s in request.sequences if s.last_token_time is not None]
    num_generated = sum(len(seq.output_token_ids) for seq in request.sequences)
    decoding_s = max(last_times) - min(first_times) if first_times else 0.0
    num_decoded = num_generated - len(first_times)
    scheduled = request.first_scheduled_time
    return RequestInfo(
        request_id=request.request_id,
        kind="answer" if request.state_sum is None else "embedding",
        state=SequenceStatus.WAITING.value,
        waiting_reason=None,
        num_candidates=len(sequences),
        prompt_tokens=len(request.prompt_token_ids),
        computed_tokens=max(seq.num_computed_tokens for seq in sequences),
        generated_tokens=num_generated,
        cached_tokens=max(seq.num_cached_tokens for seq in sequences),
        blocks_private=0,
        blocks_shared=0,
        blocks_saved=0,
        age_s=now - request.arrival_time,
        tokens_per_second=num_decoded / decoding_s if decoding_s > 0 else 0.0,
        queue_ms=None if scheduled is None else (scheduled - request.arrival_time) * 1e3,
        ttft_ms=(min(first_times) - request.arrival_time) * 1e3 if first_times else None,
    )


def _state(live: list[Sequence]) -> str:
    for status in (SequenceStatus.RUNNING, SequenceStatus.PREEMPTED):
        if any(seq.status is status for seq in live):
            return status.value
    return SequenceStatus.WAITING.value
