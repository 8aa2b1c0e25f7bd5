"""What the scheduler moves about: a `Request` (one call) and its n `Sequence`s (candidates).

A sequence's tokens are known before their KV is computed: `num_computed_tokens` chases `num_tokens`, and there is
no other notion of a phase. Until the prompt is computed only the leader (the first live candidate) holds blocks; the
others are its `followers` and fork from it then.

A beam search has a sequence per beam. Its beams differ from token to token, but what they have in common is computed
once, also again after a preemption: a follower forks at its `fork_position`.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from engine.beam_search import BeamSearch
from engine.grammar_spec import Grammar, TokenMatcher
from engine.outputs import FinishReason, SampleRequest, Timings, Usage
from engine.pooling import StateSum
from engine.prompt_lookup import PromptLookup
from engine.prompt_scores import PromptScores
from engine.sampling_params import SamplingParams
from engine.timeline import EventKind, RequestEvent, Timeline


class SequenceStatus(StrEnum):
    """waiting: never ran yet; following: forks from its leader later; preempted: pushed out, to be recomputed."""

    WAITING = "waiting"
    FOLLOWING = "following"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class BeamGroup:
    """What the beams of a request have in common: the search, and the candidates that wait for its end.

    The beams are gathered while each has only its last token to compute, or the prompt is computed for all of them.
    """

    search: BeamSearch
    open_candidates: set[int]
    is_gathered: bool = True


@dataclass(slots=True, eq=False)
class Request:
    """One call. `request_id` is the engine's own: unique, ascending with arrival. Times are `time.monotonic()`.

    The scheduler makes the `sequences` when it accepts the request, and counts in `num_overtakes` how many that stood
    behind it have started before it. A request for an embedding has a `state_sum`; its one sequence draws no token. A beam
    search has a `group`. One that wants the log-probabilities of its prompt has `scores`. With a `grammar`, which is that of `params` compiled, each sequence follows it with a matcher of its
    own.
    """

    request_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_time: float
    state_sum: StateSum | None = None
    grammar: Grammar | None = None
    sequences: list["Sequence"] = field(default_factory=list)
    first_scheduled_time: float | None = None
    num_overtakes: int = 0
    group: "BeamGroup | None" = None
    timeline: Timeline = field(default_factory=Timeline)
    scores: PromptScores | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.params.prompt_logprobs is not None:
            self.scores = PromptScores(self.prompt_token_ids, self.params.prompt_logprobs)

    @property
    def needs_every_token(self) -> bool:
        """Whether something is wanted of each token of its prompt that the prefix cache, which has keys and values, cannot give."""
        return self.state_sum is not None or self.is_being_judged

    @property
    def is_being_judged(self) -> bool:
        """Whether log-probabilities of its prompt are still wanted."""
        return self.scores is not None and not self.scores.is_complete

    def count_blocks(self) -> int:
        """How many blocks its sequences hold; what they share counts once."""
        if len(self.sequences) == 1:
            return len(self.sequences[0].block_table)
        return len({block_id for seq in self.sequences for block_id in seq.block_table})

    def note(
        self,
        kind: EventKind,
        now: float,
        index: int,
        num_tokens: int = 0,
        reason: str | None = None,
    ) -> None:
        """Remember what happened to it. Time never goes back, though a step's events are timed where they occur."""
        time_s = max(now - self.arrival_time, self.timeline.last_s)
        num_blocks = self.count_blocks()
        self.timeline.add(RequestEvent(time_s, kind, index, num_tokens, num_blocks, reason))


@dataclass(slots=True, eq=False)
class Sequence:
    """One candidate: its tokens, and where their keys and values lie.

    `block_table` maps block i of the sequence to a block id and only ever grows while the sequence runs, except that
    copy-on-write replaces a shared tail. `block_keys` are the prefix keys of its full blocks, as far as known.
    `num_cached_tokens` is what the first pass found in the prefix cache. `num_forked_blocks` are the full blocks that
    candidates had in common when they forked, for as long as this one keeps its table. `fork_position` is how many tokens
    a follower has in common with the one before it, the leader before the first. `num_accepted_drafts` of its output tokens
    were computed before they were drawn; `lookup` guesses them.
    """

    seq_id: int
    request: Request
    index: int
    max_output_tokens: int
    end_token_ids: frozenset[int]
    token_ids: list[int] = field(init=False)
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_forked_blocks: int = 0
    fork_position: int = field(init=False)
    block_table: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    status: SequenceStatus = SequenceStatus.FOLLOWING
    followers: list["Sequence"] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    num_accepted_drafts: int = 0
    lookup: PromptLookup | None = None
    _matcher: TokenMatcher | None = field(default=None, init=False)
    _sample_request: SampleRequest | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)
        self.fork_position = len(self.token_ids)
        if self.request.grammar is not None:
            self._matcher = self.request.grammar.matcher()

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and output."""
        return len(self.token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens whose keys and values are not in the pool."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_joint_tokens(self) -> int:
        """How far it may compute: to its end, a beam until a follower parts from it or the others must catch up."""
        group = self.request.group
        if group is None:
            return len(self.token_ids)
        end = len(self.token_ids) - (not group.is_gathered)
        return min([end, *(seq.fork_position for seq in self.followers)])

    @property
    def num_ready_tokens(self) -> int:
        """How many tokens it may compute now."""
        return self.num_joint_tokens - self.num_computed_tokens

    @property
    def seed(self) -> int | None:
        """The request's seed plus the candidate's index, in 64 bits; None without a seed."""
        seed = self.request.params.seed
        return None if seed is None else (seed + self.index) % 2**64

    def append(self, token_id: int, now: float) -> None:
        """Add a drawn token."""
        self.token_ids.append(token_id)
        self.output_token_ids.append(token_id)
        self.last_token_time = now
        if self.first_token_time is None:
            self.first_token_time = now

    def become(self, beam: "Sequence") -> None:
        """Take over the tokens of another beam. Lists stay the same objects: requests to sample are views of them."""
        self.token_ids[:] = beam.token_ids
        self.output_token_ids[:] = beam.output_token_ids
        self.first_token_time, self.last_token_time = beam.first_token_time, beam.last_token_time

    def drop_output(self, num_tokens: int) -> None:
        """Forget the last drawn tokens, of a sequence that ends: a stop string was complete before them."""
        num_kept = len(self.output_token_ids) - num_tokens
        del self.output_token_ids[num_kept:], self.token_ids[self.num_prompt_tokens + num_kept :]

    def sample_request(self) -> SampleRequest:
        """How to draw the next token. Kept from step to step: its token lists are views of this sequence."""
        forbidden_token_ids = self._forbidden_after(len(self.output_token_ids))
        kept = self._sample_request
        if kept is None or kept.forbidden_token_ids != forbidden_token_ids:
            kept = self._sample_request = SampleRequest(
                self.seq_id,
                self.request.params.for_candidate(self.index),
                self.seed,
                self.request.prompt_token_ids,
                self.output_token_ids,
                forbidden_token_ids,
                self.request.group.search.num_candidates if self.request.group else 0,
                self._matcher,
            )
        return kept

    def sample_requests(self, draft: list[int]) -> tuple[SampleRequest, ...]:
        """How to draw the next token, and one behind each token of `draft`."""
        first, output = self.sample_request(), self.output_token_ids
        behind = (
            replace(
                first,
                output_token_ids=output + draft[:count],
                forbidden_token_ids=self._forbidden_after(len(output) + count),
            )
            for count in range(1, len(draft) + 1)
        )
        return (first, *behind)

    def _forbidden_after(self, num_output_tokens: int) -> tuple[int, ...]:
        is_below_minimum = num_output_tokens < self.request.params.min_tokens
        return tuple(sorted(self.end_token_ids)) if is_below_minimum else ()

    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(self.num_prompt_tokens, len(self.output_token_ids), self.num_cached_tokens)

    def timings(self, now: float) -> Timings:
        """Milliseconds so far; a stage that was not reached lasts until `now`, one not begun counts 0."""
        arrival, scheduled = self.request.arrival_time, self.request.first_scheduled_time
        first, last = self.first_token_time, self.last_token_time
        decode_s = 0.0 if first is None or last is None else last - first
        num_output_tokens = len(self.output_token_ids)
        num_draws = max(1, num_output_tokens - self.num_accepted_drafts)
        return Timings(
            queue_ms=((now if scheduled is None else scheduled) - arrival) * 1e3,
            prefill_ms=0.0 if scheduled is None else ((first or now) - scheduled) * 1e3,
            ttft_ms=0.0 if first is None else (first - arrival) * 1e3,
            decode_ms=decode_s * 1e3,
            tokens_per_second=(num_output_tokens - 1) / decode_s if decode_s > 0 else 0.0,
            tokens_per_step=num_output_tokens / num_draws,
        )
