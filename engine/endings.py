"""How sequences end: they leave the roster and free their blocks in the same moment, and what they were is noted."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from engine.beam_groups import BeamGroups
from engine.counterfactuals import Counterfactuals
from engine.kv_cache_manager import KVCacheManager
from engine.outputs import Failure, FinishReason, KVUsage, SequenceEnd, StepOutput
from engine.reports import EndedRequests, Tally
from engine.roster import Roster
from engine.sequence import Request, Sequence, SequenceStatus
from engine.step_outputs import step_output
from engine.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class Endings:
    """Ends sequences; a beam search ends as a whole or candidate by candidate."""

    kv: KVCacheManager
    roster: Roster
    beams: BeamGroups
    watchdog: Watchdog
    tally: Tally
    counterfactuals: Counterfactuals
    ended_requests: EndedRequests

    def end_all(
        self, sequences: Iterable[Sequence], reason: FinishReason, error: Failure | None = None
    ) -> list[StepOutput]:
        """End those that live. Last first, so that a leader ends after its followers; reported first to last."""
        live = [seq for seq in sequences if seq.status is not SequenceStatus.FINISHED]
        ended = [self._end_one(seq, reason, error) for seq in reversed(live)]
        return [output for outputs in reversed(ended) for output in outputs]

    def _end_one(
        self, seq: Sequence, reason: FinishReason, error: Failure | None
    ) -> list[StepOutput]:
        if seq.request.group is not None:
            return self.end_beams(seq.request, range(seq.request.params.n), reason, error)
        return [step_output(seq, end=self.end(seq, reason, error=error))]

    def end_beams(
        self,
        request: Request,
        indices: Iterable[int],
        reason: FinishReason,
        error: Failure | None = None,
    ) -> list[StepOutput]:
        """End candidates of a beam search, and the search with the last of them."""
        outputs = self.beams.end(request, indices, reason, error)
        if outputs:
            self.watchdog.note_end()
        self.note_ends(request, outputs)
        return outputs

    def note_ends(self, request: Request, outputs: list[StepOutput]) -> None:
        """What is left of those that end, and of the request once all have."""
        now = time.monotonic()
        for output in outputs:
            if output.end is not None:
                num_tokens = output.end.usage.completion_tokens
                request.note("end", now, output.index, num_tokens, output.end.reason)
                if output.end.reason is FinishReason.ABORT:
                    self.tally.release.add(output.end.kv.release_ms / 1e3)
        if outputs and request.request_id not in self.roster.requests:
            self.ended_requests.add(request, now, time.time())

    def end(
        self,
        seq: Sequence,
        reason: FinishReason,
        *,
        stop_token_id: int | None = None,
        error: Failure | None = None,
    ) -> SequenceEnd:
        """End one live sequence that is no beam. Who follows it takes over its place, and its blocks before they are freed."""
        heir = self.roster.leave(seq)
        if heir is not None:
            self.kv.fork(seq, heir)
        self.counterfactuals.note_end(seq)
        num_blocks = len(seq.block_table)
        num_shared = max(self.kv.count_shared(seq), seq.num_forked_blocks)
        started = time.perf_counter()
        num_released = self.kv.free(seq)
        release_ms = (time.perf_counter() - started) * 1e3
        kv = KVUsage(num_blocks - num_shared, num_shared, num_released, release_ms)
        seq.finish_reason = reason
        self.watchdog.note_end()
        timings = seq.timings(time.monotonic())
        end = SequenceEnd(reason, seq.usage(), timings, kv, stop_token_id, error)
        self.note_ends(seq.request, [step_output(seq, end=end)])
        return end
