"""Messages between the parts of the engine, and from the engine to its callers. All of them immutable.

Inside: scheduler -> `SchedulerOutput` -> model runner -> `ModelRunnerOutput` -> scheduler -> `StepOutput`.
Outside: `EngineEvent`s of one request, in order; exactly one `RequestFinished`, and it is the last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from engine.grammar_spec import TokenMatcher
from engine.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Why a sequence ended: its own end or a stop string, a limit, its user, or a failure of ours."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


# --- scheduler to model runner -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy block `src` to block `dst` in every layer, before the forward pass of the step."""

    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One token to draw from the logits of a scheduled sequence's last token.

    `seed` is None for a sequence without one: draws then come from fresh entropy. The n-th output token of a
    seeded sequence depends on (seed, n) and the logits only: `len(output_token_ids)` is n. The token lists are
    views of the sequence, valid during the step. `forbidden_token_ids` cannot be drawn (min_tokens). A beam search
    wants its `num_candidates` best tokens, as `top_logprobs` of what is drawn; 0 outside of one. With a `matcher` only
    what it allows can be drawn.
    """

    seq_id: int
    params: SamplingParams
    seed: int | None
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    forbidden_token_ids: tuple[int, ...] = ()
    num_candidates: int = 0
    matcher: TokenMatcher | None = None


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Tokens of a prompt to judge: each of them follows one of the first tokens that a step computes of it, in order.

    Wanted are the log-probability of each and the `num_top` best tokens of its place.
    """

    token_ids: Sequence[int]
    num_top: int


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """A run of tokens of one sequence to compute in this step.

    `token_ids` [num_scheduled_tokens] stand at positions `start_position`, `start_position` + 1, ...;
    `block_table` covers all positions up to the last of them. `samples` is empty for a chunk that does not reach
    the end of the known tokens, holds one entry for an ordinary sequence, n for a prompt that forks after this step (one
    again if it forks into beams). With `wants_states` the sum of these tokens' final states is wanted, and `samples` is empty.
    With a `score` the tokens that follow in the prompt are judged.

    The last `num_drafts` tokens are guesses. With some, `samples` are draws of this one sequence: the first behind its last
    known token, one more behind each guess, as if the guesses before it had been drawn.
    """

    seq_id: int
    token_ids: Sequence[int]
    start_position: int
    block_table: Sequence[int]
    samples: tuple[SampleRequest, ...]
    wants_states: bool = False
    num_drafts: int = 0
    score: ScoreRequest | None = None


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step: first the copies, then all sequences in one batch."""

    scheduled: tuple[ScheduledSequence, ...]
    block_copies: tuple[BlockCopy, ...]
    num_scheduled_tokens: int


# --- ends with an error --------------------------------------------------------------------------


class FailureCode(StrEnum):
    """Whose fault it is: the engine's, or that of the grammar that the request came with."""

    ENGINE = "engine_error"
    GRAMMAR = "grammar_failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a sequence ended with an error."""

    message: str
    code: FailureCode = FailureCode.ENGINE


# --- model runner to scheduler -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token in the raw distribution, with the sampled token's rank from 1."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What was drawn; `logprob` and `top_logprobs` (best first) only when the request asked for them.

    `error` says why nothing could be drawn; `token_id` is -1 then.
    """

    token_id: int
    logprob: TokenLogprob | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
    error: Failure | None = None


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """How likely the model thought a token of the prompt to be, and the best tokens of its place, best first."""

    logprob: TokenLogprob
    top_logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """The drawn tokens by seq_id, one for every SampleRequest of the step; and of those that want states their sums.

    A sum [hidden_size] is over the scheduled tokens' states after the final norm, each rounded to `pooling.STATE_UNIT`.
    What was drawn behind drafts, in order, is in `behind_drafts`. `scores` has by seq_id one entry for every token of a
    ScoreRequest.
    """

    samples: Mapping[int, SampledToken]
    state_sums: Mapping[int, Sequence[float]] = field(default_factory=dict)
    behind_drafts: Mapping[int, Sequence[SampledToken]] = field(default_factory=dict)
    scores: Mapping[int, Sequence[ScoredToken]] = field(default_factory=dict)


# --- engine to callers ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one candidate. `completion_tokens` counts sampled tokens, EOS included."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds; output tokens per second of the decode phase (0 when there was none), and per step (1 without drafts)."""

    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    decode_ms: float
    tokens_per_second: float
    tokens_per_step: float


@dataclass(frozen=True, slots=True)
class KVUsage:
    """Blocks a candidate held when it ended, and how many its end released, how fast.

    Shared are those that another sequence holds as well, and the prompt's blocks that candidates forked with, also for the
    candidate that ends last. The blocks of a beam search count for its first candidate that ends with it.
    """

    blocks_private: int
    blocks_shared: int
    blocks_released: int
    release_ms: float


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """A token's log-probability with its text and its true bytes, which need not be whole characters."""

    token_id: int
    token: str
    logprob: float
    bytes: bytes
    top: tuple["TextLogprob", ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How much of the prompt has been computed."""

    computed_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """What is thought of the prompt's tokens, for a request with `prompt_logprobs`; in several events, before any text.

    The `first` of them has the text of the prompt's first token, which nothing comes before; `others` are judged.
    """

    first: str | None
    others: tuple[TextLogprob, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of a candidate. `text` may be empty while bytes or a possible stop string are held back."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TextLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Embedding:
    """What an embedding request is for: the mean of its prompt's final states at length 1 [hidden_size]."""

    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CandidateFinished:
    """A candidate's end; comes once per index. `stop_reason` is the stop string or stop token id that matched.

    `cumulative_logprob` is the sum over its sampled tokens, for an answer that a beam search found.
    """

    index: int
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    timings: Timings
    kv: KVUsage
    error: Failure | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """The one terminal event of a request."""


# --- scheduler to output processor ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """The end of a candidate. `stop_token_id` is the one of `stop_token_ids` that was drawn, None for EOS."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    kv: KVUsage
    stop_token_id: int | None = None
    error: Failure | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step, an abort or a stop string did to one candidate; `end` comes once per candidate and last.

    A beam search gives its candidates' tokens when it ends, each in an output of its own. `sampled` with an `end` of reason STOP is the EOS or stop token itself, which is not shown.
    """

    request_id: int
    seq_id: int
    index: int
    sampled: SampledToken | None = None
    progress: PrefillProgress | None = None
    end: SequenceEnd | None = None
    embedding: Embedding | None = None
    prompt_scores: tuple[ScoredToken, ...] | None = None


EngineEvent = (
    PrefillProgress | PromptLogprobs | TextDelta | Embedding | CandidateFinished | RequestFinished
)
