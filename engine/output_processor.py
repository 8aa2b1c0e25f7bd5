"""What the scheduler did, as text and events for callers: one `OutputProcessor` for all requests, in the worker thread.

A request's first events beside its progress are `PromptLogprobs`, if it wants them. Per candidate the events are `TextDelta`s (or one `Embedding`), then one `CandidateFinished`; `RequestFinished` comes last. A
`TextDelta` carries every drawn token but the stop token (EOS or one of `stop_token_ids`), which only `usage` counts.
The texts of a candidate joined are the decoding of its tokens without special ones, cut at the first stop string; the
first `min_tokens` tokens are not searched for stop strings.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.detokenizer import Detokenizer, StopMatcher, compile_stops
from engine.outputs import (
    CandidateFinished,
    EngineEvent,
    FinishReason,
    PromptLogprobs,
    RequestFinished,
    SampledToken,
    ScoredToken,
    SequenceEnd,
    StepOutput,
    TextDelta,
    TextLogprob,
    TokenLogprob,
)
from engine.sequence import Request
from engine.stats import FinishedCandidate


class TokenBytes(Protocol):
    """The part of a tokenizer that streaming needs."""

    def token_bytes(self, token_id: int, /) -> bytes:
        """The bytes a token stands for."""
        ...

    def visible_bytes(self, token_id: int, /) -> bytes:
        """The same, but nothing for a special token."""
        ...


@dataclass(slots=True)
class ProcessedOutputs:
    """Events in order with their request's id; who ended; and whom a stop string ends, for the caller to do.

    `stopped` has the seq_ids of those, with the number of tokens drawn behind the stop string, which do not count.
    """

    events: list[tuple[int, EngineEvent]] = field(default_factory=list)
    finished: list[FinishedCandidate] = field(default_factory=list)
    stopped: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.events)

    def extend(self, other: "ProcessedOutputs") -> None:
        """Append what came later."""
        self.events += other.events
        self.finished += other.finished
        self.stopped.update(other.stopped)


class OutputProcessor:
    """Holds the text state of every live candidate."""

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._requests: dict[int, _RequestText] = {}

    def add_request(self, request: Request) -> None:
        """Expect outputs of this request."""
        params, stops = request.params, compile_stops(request.params.stop)
        candidates = {
            index: _Candidate(self._tokenizer, StopMatcher(stops), params.min_tokens)
            for index in range(params.n)
        }
        self._requests[request.request_id] = _RequestText(
            request.arrival_time, request.prompt_token_ids[0], candidates
        )

    def process(self, outputs: Iterable[StepOutput]) -> ProcessedOutputs:
        """Take in what happened to sequences, in order."""
        processed = ProcessedOutputs()
        for output in outputs:
            self._process_one(output, processed)
        return processed

    def _process_one(self, output: StepOutput, processed: ProcessedOutputs) -> None:
        def tell(event: EngineEvent) -> None:
            processed.events.append((output.request_id, event))

        request = self._requests[output.request_id]
        if output.progress is not None:
            tell(output.progress)
        if output.embedding is not None:
            tell(output.embedding)
        if output.prompt_scores is not None:
            tell(self._prompt_logprobs(request, output.prompt_scores))
        candidate = request.candidates.get(output.index)
        if candidate is None:
            return
        delta = candidate.take(output)
        if delta is not None:
            tell(delta)
        if output.end is not None:
            end = candidate.apply_stop(output.end)
            tell(_candidate_finished(output.index, end, candidate.stop_reason(end)))
            processed.finished.append(request.finish(output, end))
            if not request.candidates:
                del self._requests[output.request_id]
                tell(RequestFinished())
        is_to_be_told = output.end is None or candidate.num_unused > 0
        if candidate.is_stopped and output.sampled is not None and is_to_be_told:
            processed.stopped[output.seq_id] = candidate.num_unused

    def _prompt_logprobs(
        self, request: "_RequestText", scores: Iterable[ScoredToken]
    ) -> PromptLogprobs:
        first, request.first_token_id = request.first_token_id, None
        text = (
            None if first is None else self._tokenizer.token_bytes(first).decode(errors="replace")
        )
        others = (_with_text(self._tokenizer, s.logprob, s.top_logprobs) for s in scores)
        return PromptLogprobs(text, tuple(others))


@dataclass(slots=True)
class _RequestText:
    """The candidates that have not ended. `first_token_id` is the prompt's, until it is told."""

    arrival_time: float
    first_token_id: int | None
    candidates: dict[int, "_Candidate"]

    def finish(self, output: StepOutput, end: SequenceEnd) -> FinishedCandidate:
        del self.candidates[output.index]
        e2e_ms = (time.monotonic() - self.arrival_time) * 1e3
        is_last = not self.candidates
        return FinishedCandidate(
            output.request_id, output.index, end.reason, end.usage, end.timings, e2e_ms, is_last
        )


class _Candidate:
    """Tokens to shown text, for one candidate."""

    def __init__(self, tokenizer: TokenBytes, matcher: StopMatcher, min_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer.visible_bytes)
        self._matcher = matcher
        self._num_unsearched = min_tokens
        self._num_used = self.num_unused = 0
        """Tokens up to the end of the stop string, if there is one, and those of its step behind it."""

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._matcher.matched is not None

    def take(self, output: StepOutput) -> TextDelta | None:
        """What a step adds to the text; None when it adds neither a token nor text."""
        text, end = "", output.end
        shown = None if self.is_stopped else output.sampled
        self._num_used += shown is not None
        self.num_unused += output.sampled is not shown
        if end is not None and end.reason is FinishReason.STOP:
            shown = None
        if shown is not None:
            text = self._push(self._detokenizer.push(shown.token_id))
            self._num_unsearched -= 1
        if end is not None:
            text += self._push(self._detokenizer.flush()) + self._matcher.flush()
        if shown is None:
            return TextDelta(output.index, text, ()) if text else None
        return TextDelta(output.index, text, (shown.token_id,), self._logprobs(shown))

    def apply_stop(self, end: SequenceEnd) -> SequenceEnd:
        """A stop string outranks the limit that its last token reached, and whatever a token behind it led to."""
        if not self.is_stopped or end.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return end
        usage = replace(end.usage, completion_tokens=self._num_used)
        return replace(end, reason=FinishReason.STOP, usage=usage)

    def stop_reason(self, end: SequenceEnd) -> str | int | None:
        """The stop string or stop token id that ended the candidate."""
        if self.is_stopped and end.reason is FinishReason.STOP:
            return self._matcher.matched
        return end.stop_token_id

    def _push(self, text: str) -> str:
        return text if self._num_unsearched > 0 else self._matcher.push(text)

    def _logprobs(self, sampled: SampledToken) -> tuple[TextLogprob, ...]:
        if sampled.logprob is None:
            return ()
        return (_with_text(self._tokenizer, sampled.logprob, sampled.top_logprobs),)


def _with_text(
    tokenizer: TokenBytes, entry: TokenLogprob, top: Iterable[TokenLogprob] = ()
) -> TextLogprob:
    token = tokenizer.token_bytes(entry.token_id)
    text = token.decode(errors="replace")
    shown = tuple(_with_text(tokenizer, other) for other in top)
    return TextLogprob(entry.token_id, text, entry.logprob, token, shown)


def _candidate_finished(
    index: int, end: SequenceEnd, stop_reason: str | int | None
) -> CandidateFinished:
    return CandidateFinished(
        index,
        end.reason,
        stop_reason,
        end.usage,
        end.timings,
        end.kv,
        end.error,
        end.cumulative_logprob,
    )
