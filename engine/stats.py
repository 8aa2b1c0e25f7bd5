"""Immutable pictures of the engine, published by the worker thread. Readers never touch live state."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from engine.distributions import Distribution
from engine.outputs import FinishReason, Timings, Usage
from engine.timeline import RequestEvent

STEP_EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Of vLLM's histogram of tokens per step."""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """private + shared + cached + free = total. `cached` is reclaimable: no sequence refers to it."""

    total: int
    private: int
    shared: int
    cached: int
    free: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since start. prefix_queries and prefix_hits count tokens; generated_tokens counts sampled tokens kept.

    `drafts` counts the times that a sequence was computed with guesses ahead, draft_tokens the tokens guessed, and
    accepted_tokens those that came true.
    """

    preemptions: int = 0
    forks: int = 0
    cow_copies: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    requests: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CounterfactualBytes:
    """KV memory as paged, and as three contiguous policies would hold it.

    They reserve max_model_len, the next power of two of the length, and exactly the length: the length so far for the live
    load (a lower bound), the final one for what has ended. See engine/counterfactuals.py.
    """

    paged: int = 0
    max_len: int = 0
    pow2: int = 0
    exact: int = 0


@dataclass(frozen=True, slots=True)
class InternalFragmentation:
    """Bytes of live blocks that hold no token yet, and their share of all bytes of live blocks (0 to 1)."""

    bytes: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Distributions:
    """Totals since start, in seconds but for `step_tokens`.

    ttft: from arrival to a candidate's first token; itl: between two tokens of a candidate that come in different steps; queue: from arrival to the
    request's first step; release: what freeing the blocks of an aborted candidate took; step_tokens: tokens that a step
    computed. Beams, whose text comes at the end, have no ttft and no itl.
    """

    ttft: Distribution
    itl: Distribution
    queue: Distribution
    release: Distribution
    step_tokens: Distribution


NOTHING = Distribution()
NO_DISTRIBUTIONS = Distributions(
    *(NOTHING, NOTHING, NOTHING, NOTHING),
    step_tokens=Distribution(STEP_EDGES, (0,) * (len(STEP_EDGES) + 1)),
)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine after a step. `time` is seconds since the epoch; waiting splits by reason.

    `counterfactual_bytes` and `internal_fragmentation` are of the live load, `counterfactual_bytes_ended` sums since start over
    the sequences that have ended.

    waiting_capacity: no block or sequence slot is free for it; waiting_budget: this step's token budget was spent;
    waiting_deferred: a sibling computes what it will share. `blocks_saved` is how many blocks more the running sequences
    would hold without sharing.
    """

    time: float
    num_steps: int
    blocks: BlockCounts
    tokens_capacity: int
    tokens_stored: int
    num_running: int
    num_waiting: int
    waiting_capacity: int
    waiting_budget: int
    counters: Counters
    counterfactual_bytes: CounterfactualBytes
    counterfactual_bytes_ended: CounterfactualBytes
    internal_fragmentation: InternalFragmentation
    waiting_deferred: int = 0
    blocks_saved: int = 0
    distributions: Distributions = NO_DISTRIBUTIONS


class BlockState(StrEnum):
    """free: nothing in it; cached: reusable by prefix, reclaimable; private and shared: held by 1 or more sequences."""

    FREE = "free"
    CACHED = "cached"
    PRIVATE = "private"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """One cell of the block map. `owners` are request ids (engine's own), each once, in ascending order."""

    block_id: int
    state: BlockState
    ref_count: int
    owners: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockMap:
    """Every block as of one moment. To take it costs copies; who iterates describes the blocks, in order of id.

    `states` has the number of each block's state in `BlockState`, `tables` each running sequence's request id and blocks.
    """

    states: bytes
    tables: tuple[tuple[int, tuple[int, ...]], ...]

    def __iter__(self) -> Iterator[BlockInfo]:
        names = tuple(BlockState)
        holders: dict[int, list[int]] = {}
        for request_id, table in self.tables:
            for block_id in table:
                holders.setdefault(block_id, []).append(request_id)
        for block_id, state in enumerate(self.states):
            held = holders.get(block_id, ())
            yield BlockInfo(block_id, names[state], len(held), tuple(sorted(set(held))))


@dataclass(frozen=True, slots=True)
class BlockCells:
    """The block map in compact form: per block the number of its state in `BlockState` (one byte), and its oldest request or 0."""

    states: bytes
    owners: "array[int]"


@dataclass(frozen=True, slots=True)
class BlockHolder:
    """A candidate that holds a block, as block number `position` of its table."""

    request_id: int
    index: int
    position: int


@dataclass(frozen=True, slots=True)
class BlockDetail:
    """One block looked at closely; `num_tokens` are stored in it."""

    block_id: int
    state: BlockState
    ref_count: int
    num_tokens: int
    holders: tuple[BlockHolder, ...]


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A request. `kind`: answer | embedding; `state`: waiting | running | preempted | finished; `waiting_reason`: capacity | budget | deferred | None.

    `tokens_per_second` counts all candidates, from the first token on. `age_s` ends with the request, `ended_at` (seconds
    since the epoch) and `finish_reasons`, one per candidate that has ended, say how. `ttft_ms` is the first candidate's.
    `blocks_saved`: how many more blocks its candidates would hold if none were shared between them.
    """

    request_id: int
    kind: str
    state: str
    waiting_reason: str | None
    num_candidates: int
    prompt_tokens: int
    computed_tokens: int
    generated_tokens: int
    cached_tokens: int
    blocks_private: int
    blocks_shared: int
    blocks_saved: int
    age_s: float
    tokens_per_second: float = 0.0
    queue_ms: float | None = None
    ttft_ms: float | None = None
    finish_reasons: tuple[str, ...] = ()
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class RequestDetail:
    """A request with what happened to it, in order."""

    info: RequestInfo
    events: tuple[RequestEvent, ...]


@dataclass(frozen=True, slots=True)
class RequestsReport:
    """Live requests in order of arrival, ended ones from the last on, and how many blocks sharing saves at this moment.

    saved_by_forks: held by more than one candidate of a request; saved_by_prefix_cache: by more than one request.
    """

    live: tuple[RequestInfo, ...]
    recent: tuple[RequestInfo, ...]
    saved_by_forks: int
    saved_by_prefix_cache: int


@dataclass(frozen=True, slots=True)
class FinishedCandidate:
    """What is known about a candidate when it ends, for metrics; `is_last`: no candidate of its request lives any more."""

    request_id: int
    index: int
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    e2e_ms: float
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Where the engine stands. While loading, `stage` is for people and `fraction` is 0 to 1 of it, None where it cannot tell;
    dead carries `error`.
    """

    state: Literal["loading", "ready", "dead"]
    stage: str = ""
    fraction: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What start-up found and chose; sizes in tokens, blocks and bytes."""

    model_name: str
    architecture: str
    num_parameters: int
    quantization: str
    dtype: str
    kv_cache_dtype: str
    attention_backend: str
    backend_reason: str
    device: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int
    hidden_size: int
    block_size: int
    num_blocks: int
    num_blocks_reason: str
    bytes_per_block: int
    load_seconds: float
