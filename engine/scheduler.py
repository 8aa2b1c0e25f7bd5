"""The life of requests: queued, planned step by step, forked, ended. What runs in a step is the planner's choice.

`schedule` and `update` alternate. Abort and finish may come at any time, also between the two: what they ended is then
ignored in the update.
"""

import itertools
import time
from collections.abc import Iterable

from engine.admission import check_request, max_output_tokens
from engine.beam_groups import BeamGroups
from engine.config import SchedulerConfig
from engine.counterfactuals import Counterfactuals
from engine.kv_cache_manager import KVCacheManager
from engine.outputs import (
    Embedding,
    FinishReason,
    KVUsage,
    ModelRunnerOutput,
    PrefillProgress,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
    SequenceEnd,
    StepOutput,
)
from engine.planner import Planner
from engine.pooling import StateSum
from engine.reports import (
    EndedRequests,
    Tally,
    count_savings,
    describe_block,
    describe_blocks,
    describe_cells,
    describe_request,
)
from engine.residency import count_resident
from engine.roster import Roster
from engine.sequence import Request, Sequence, SequenceStatus
from engine.stats import (
    BlockCells,
    BlockDetail,
    BlockInfo,
    EngineStats,
    RequestDetail,
    RequestInfo,
    RequestsReport,
)
from engine.watchdog import Watchdog


class Scheduler:
    """Owns every live request, and through `kv` all KV memory. One thread only."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.kv = KVCacheManager(config)
        self._roster = Roster()
        self._tally = Tally()
        self._counterfactuals = Counterfactuals(config)
        self._beams = BeamGroups(config, self.kv, self._roster, self._tally, self._counterfactuals)
        self._planner = Planner(config, self.kv, self._roster, self._tally, self._beams)
        self._watchdog = Watchdog(config, self.kv, self._roster)
        self._seq_ids = itertools.count()
        self._plan: SchedulerOutput | None = None
        self._ended: list[StepOutput] = []
        self._ended_requests = EndedRequests()
        self._num_steps = 0

    # --- requests come and go --------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue `request` and make its sequences. Raises RequestError, and holds nothing, if it can never run."""
        assert request.request_id not in self._roster.requests, (
            f"request {request.request_id} runs already"
        )
        check_request(self.config, request.prompt_token_ids, request.params)
        params = request.params
        request.sequences = [self._make_sequence(request, i) for i in range(params.num_sequences)]
        self._beams.form(request)
        self._roster.enter(request)
        self._tally.requests += 1
        request.note("queued", request.arrival_time, 0, len(request.prompt_token_ids))

    def abort(self, request_id: int, index: int | None = None) -> list[StepOutput]:
        """End one candidate, or all that still live, and free their blocks now. What has ended stays as it is."""
        request = self._roster.requests.get(request_id)
        if request is not None and request.group is not None:
            indices = range(request.params.n) if index is None else (index,)
            return self._end_beams(request, indices, FinishReason.ABORT)
        sequences = request.sequences if request else []
        chosen = [seq for seq in sequences if index is None or seq.index == index]
        return self._end_all(chosen, FinishReason.ABORT)

    def finish(self, seq_id: int, reason: FinishReason, num_unused: int = 0) -> list[StepOutput]:
        """End a sequence for a reason found outside, such as a stop string. Ignored if it has ended.

        The last `num_unused` tokens drawn do not count: they came in the step in which the reason was found, behind it.
        A beam stands for its whole group, here and wherever sequences end without having come to their own end.
        """
        self._tally.generated_tokens -= num_unused
        seq = self._roster.sequences.get(seq_id)
        if seq is None:
            return []
        if num_unused:
            seq.drop_output(num_unused)
        return self._end_all([seq], reason)

    def fail_step(self, error: str) -> list[StepOutput]:
        """The plan could not be executed: end what was in it, as its blocks hold nobody knows what."""
        plan, self._plan = self._plan, None
        assert plan is not None, "no step is under way"
        self.kv.release_copies()
        holders = [self._roster.holder(entry.seq_id) for entry in plan.scheduled]
        lost = [seq for holder in holders if holder for seq in (holder, *holder.followers)]
        self._roster.forget_heirs()
        return self._take_ended() + self._end_all(lost, FinishReason.ERROR, error)

    def fail_all(self, error: str) -> list[StepOutput]:
        """End everything, as the engine cannot go on."""
        outputs = self.fail_step(error) if self._plan else self._take_ended()
        return outputs + self._end_all(
            list(self._roster.sequences.values()), FinishReason.ERROR, error
        )

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report something."""
        return bool(self._roster.running or self._roster.waiting or self._ended)

    # --- one step --------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. `update` (or `fail_step`) must follow, also when the plan is empty."""
        assert self._plan is None, "the last plan was neither updated nor failed"
        self._plan = self._planner.plan()
        culprit = self._watchdog.find_culprit(self._plan)
        if culprit is not None:
            seq, error = culprit
            self._ended += self._end_all([seq, *seq.followers], FinishReason.ERROR, error)
        return self._plan

    def update(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[StepOutput]:
        """Take in what the step computed and drew. Sequences that ended meanwhile are ignored."""
        assert plan is self._plan, "this is not the plan that is under way"
        now = time.monotonic()
        self.kv.release_copies()
        outputs = self._take_ended()
        for entry in plan.scheduled:
            seq = self._roster.holder(entry.seq_id)
            if seq is not None:
                outputs += self._take_scores(seq, entry, output)
                outputs += self._advance(seq, entry, output, now)
        self._plan = None
        self._roster.forget_heirs()
        if plan.scheduled:
            self._num_steps += 1
            self._tally.step_tokens.add(plan.num_scheduled_tokens)
        self._watchdog.note_outputs(outputs)
        return outputs

    # --- what a step did to a sequence -----------------------------------------------------------

    def _take_scores(
        self, seq: Sequence, entry: ScheduledSequence, output: ModelRunnerOutput
    ) -> list[StepOutput]:
        """What the step says about tokens of the prompt, when that makes it complete."""
        scores, request = seq.request.scores, seq.request
        if scores is None:
            return []
        if entry.score is not None and scores.add(
            entry.start_position, output.scores[entry.seq_id]
        ):
            self._watchdog.note_draw()
        told = scores.tell()
        if told is None:
            return []
        return [StepOutput(request.request_id, seq.seq_id, _open_index(seq), prompt_scores=told)]

    def _advance(
        self, seq: Sequence, entry: ScheduledSequence, output: ModelRunnerOutput, now: float
    ) -> list[StepOutput]:
        if entry.num_drafts:
            return self._advance_drafted(seq, entry, output, now)
        num_tokens = len(entry.token_ids)
        if seq.request.state_sum is not None:
            sums = output.state_sums[seq.seq_id]
            seq.request.state_sum.add(seq.num_computed_tokens, num_tokens, sums)
        self._commit(seq, num_tokens, now)
        outputs = [] if seq.output_token_ids else [_progress(seq)]
        if seq.request.group is not None:
            return outputs + self._advance_beams(seq, output, now)
        if seq.num_uncomputed_tokens:
            return outputs
        candidates = self._fork_followers(seq, now) if seq.followers else [seq]
        return outputs + [self._accept(s, output.samples.get(s.seq_id), now) for s in candidates]

    def _advance_drafted(
        self, seq: Sequence, entry: ScheduledSequence, output: ModelRunnerOutput, now: float
    ) -> list[StepOutput]:
        """Take the draw behind the last token, and the one behind each draft for as long as drafts were what was drawn."""
        draft = entry.token_ids[-entry.num_drafts :]
        drawn = (output.samples[seq.seq_id], *output.behind_drafts[seq.seq_id])
        outputs: list[StepOutput] = []
        for sampled, guessed in zip(drawn, (*draft, None), strict=True):
            self._commit(seq, 1, now)
            seq.num_accepted_drafts += bool(outputs)
            outputs.append(self._accept(seq, sampled, now))
            if sampled.token_id != guessed or seq.status is SequenceStatus.FINISHED:
                break
        self._tally.drafts += 1
        self._tally.draft_tokens += len(draft)
        self._tally.accepted_tokens += len(outputs) - 1
        return outputs

    def _commit(self, seq: Sequence, num_tokens: int, now: float) -> None:
        self.kv.commit(seq, num_tokens)
        if num_tokens > 1 or not seq.output_token_ids:
            seq.request.note("chunk", now, seq.index, num_tokens)
        elif seq.num_computed_tokens % self.config.block_size == 1 or self.config.block_size == 1:
            seq.request.note("block", now, seq.index, seq.num_computed_tokens)

    def _advance_beams(
        self, seq: Sequence, output: ModelRunnerOutput, now: float
    ) -> list[StepOutput]:
        """What the step did to a beam; the search goes on with the last of them, as they stand in order in a plan."""
        has_progress = True
        outputs: list[StepOutput] = []
        if seq.num_uncomputed_tokens:
            has_progress = self._beams.part(seq)
        elif seq.followers or seq is seq.request.sequences[-1]:
            outputs = self._beams.advance(seq.request, output, now)
            self._note_ends(seq.request, outputs)
        if has_progress:
            self._watchdog.note_draw()
        return outputs

    def _fork_followers(self, leader: Sequence, now: float) -> list[Sequence]:
        followers = self._roster.release_followers(leader)
        for seq in followers:
            self.kv.fork(leader, seq)
            seq.request.note("fork", now, seq.index)
        candidates = [leader, *followers]
        if followers:
            for seq in candidates:
                seq.num_forked_blocks = leader.num_computed_tokens // self.config.block_size
        self._tally.forks += len(followers)
        return candidates

    def _accept(self, seq: Sequence, sampled: SampledToken | None, now: float) -> StepOutput:
        if seq.request.state_sum is not None:
            return self._end_with_embedding(seq, seq.request.state_sum)
        reason = stop_token_id = None
        assert (sampled is None) == (seq.max_output_tokens == 0), "a token too many or too few"
        if sampled is not None:
            if sampled.error is not None:
                error = self._end(seq, FinishReason.ERROR, error=sampled.error)
                return _step_output(seq, end=error)
            self._note_token(seq, now)
            seq.append(sampled.token_id, now)
            self._tally.generated_tokens += 1
            if sampled.token_id in seq.end_token_ids:
                reason = FinishReason.STOP
                if sampled.token_id in seq.request.params.stop_token_ids:
                    stop_token_id = sampled.token_id
        if reason is None and len(seq.output_token_ids) >= seq.max_output_tokens:
            reason = FinishReason.LENGTH
        end = self._end(seq, reason, stop_token_id=stop_token_id) if reason else None
        return _step_output(seq, sampled=sampled, end=end)

    def _note_token(self, seq: Sequence, now: float) -> None:
        """Before a drawn token is added."""
        if seq.last_token_time is None:
            self._tally.ttft.add(now - seq.request.arrival_time)
            seq.request.note("first_token", now, seq.index)
        elif now > seq.last_token_time:
            self._tally.itl.add(now - seq.last_token_time)

    def _end_with_embedding(self, seq: Sequence, state_sum: StateSum) -> StepOutput:
        values = state_sum.embedding()
        if values is None:
            error = "the model's states are not finite numbers"
            return _step_output(seq, end=self._end(seq, FinishReason.ERROR, error=error))
        end = self._end(seq, FinishReason.STOP)
        return _step_output(seq, end=end, embedding=Embedding(values))

    def _end_all(
        self, sequences: Iterable[Sequence], reason: FinishReason, error: str | None = None
    ) -> list[StepOutput]:
        """End those that live. Last first, so that a leader ends after its followers; reported first to last."""
        live = [seq for seq in sequences if seq.status is not SequenceStatus.FINISHED]
        ended = [self._end_one(seq, reason, error) for seq in reversed(live)]
        return [output for outputs in reversed(ended) for output in outputs]

    def _end_one(self, seq: Sequence, reason: FinishReason, error: str | None) -> list[StepOutput]:
        if seq.request.group is not None:
            return self._end_beams(seq.request, range(seq.request.params.n), reason, error)
        return [_step_output(seq, end=self._end(seq, reason, error=error))]

    def _end_beams(
        self,
        request: Request,
        indices: Iterable[int],
        reason: FinishReason,
        error: str | None = None,
    ) -> list[StepOutput]:
        outputs = self._beams.end(request, indices, reason, error)
        if outputs:
            self._watchdog.note_end()
        self._note_ends(request, outputs)
        return outputs

    def _note_ends(self, request: Request, outputs: list[StepOutput]) -> None:
        """What is left of those that end, and of the request once all have."""
        now = time.monotonic()
        for output in outputs:
            if output.end is not None:
                num_tokens = output.end.usage.completion_tokens
                request.note("end", now, output.index, num_tokens, output.end.reason)
                if output.end.reason is FinishReason.ABORT:
                    self._tally.release.add(output.end.kv.release_ms / 1e3)
        if outputs and request.request_id not in self._roster.requests:
            self._ended_requests.add(request, now, time.time())

    def _end(
        self,
        seq: Sequence,
        reason: FinishReason,
        *,
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> SequenceEnd:
        heir = self._roster.leave(seq)
        if heir is not None:
            self.kv.fork(seq, heir)
        self._counterfactuals.note_end(seq)
        num_blocks = len(seq.block_table)
        num_shared = max(self.kv.count_shared(seq), seq.num_forked_blocks)
        started = time.perf_counter()
        num_released = self.kv.free(seq)
        release_ms = (time.perf_counter() - started) * 1e3
        kv = KVUsage(num_blocks - num_shared, num_shared, num_released, release_ms)
        seq.finish_reason = reason
        self._watchdog.note_end()
        timings = seq.timings(time.monotonic())
        end = SequenceEnd(reason, seq.usage(), timings, kv, stop_token_id, error)
        self._note_ends(seq.request, [_step_output(seq, end=end)])
        return end

    def _make_sequence(self, request: Request, index: int) -> Sequence:
        params = request.params
        eos = frozenset() if params.ignore_eos else self.config.eos_token_ids
        limit = max_output_tokens(self.config, len(request.prompt_token_ids), params)
        end_token_ids = eos.union(params.stop_token_ids)
        return Sequence(next(self._seq_ids), request, index, limit, end_token_ids)

    def _take_ended(self) -> list[StepOutput]:
        ended, self._ended = self._ended, []
        return ended

    # --- what people may see ---------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """The published picture. O(running sequences), whatever the size of the pool."""
        pool, counts = self.kv.pool, self.kv.pool.counts
        num_waiting, num_short = len(self._roster.waiting), self._planner.intake.num_short
        num_deferred = self._planner.intake.num_deferred
        num_references = sum(len(seq.block_table) for seq in self._roster.running)
        return EngineStats(
            time=time.time(),
            num_steps=self._num_steps,
            blocks=counts,
            tokens_capacity=counts.total * counts.block_size,
            tokens_stored=pool.tokens_stored,
            num_running=len(self._roster.running),
            num_waiting=num_waiting,
            waiting_capacity=num_short,
            waiting_budget=num_waiting - num_short - num_deferred,
            counters=self._tally.counters(self.kv.num_cow_copies),
            counterfactual_bytes=self._counterfactuals.live(pool, self._roster.running),
            counterfactual_bytes_ended=self._counterfactuals.ended(),
            internal_fragmentation=self._counterfactuals.fragmentation(pool),
            waiting_deferred=num_deferred,
            blocks_saved=num_references - counts.private - counts.shared,
            distributions=self._tally.distributions(),
        )

    def requests(self) -> tuple[RequestInfo, ...]:
        """The live requests in order of arrival."""
        now = time.monotonic()
        reasons = {
            seq.request.request_id: self._planner.intake.reason(seq) for seq in self._roster.waiting
        }
        return tuple(
            describe_request(request, self.kv.pool, now, reasons.get(request.request_id))
            for request in self._roster.requests.values()
        )

    def requests_report(self) -> RequestsReport:
        """Live and ended requests, and what sharing saves."""
        by_forks, by_prefix_cache = count_savings(self.kv.pool, self._roster.requests.values())
        recent = tuple(detail.info for detail in self._ended_requests.newest_first())
        return RequestsReport(self.requests(), recent, by_forks, by_prefix_cache)

    def request(self, request_id: int) -> RequestDetail | None:
        """A live request, or one that has ended lately, with what happened to it."""
        request = self._roster.requests.get(request_id)
        if request is None:
            return self._ended_requests.find(request_id)
        (info,) = (info for info in self.requests() if info.request_id == request_id)
        return RequestDetail(info, tuple(request.timeline.events))

    def block_cells(self) -> BlockCells:
        """Every block in compact form. O(references to blocks), and a copy of a byte per block."""
        return describe_cells(self.kv.pool, self._roster.running)

    def block(self, block_id: int) -> BlockDetail | None:
        """One block and who holds it; None if there is no such block."""
        return describe_block(self.kv.pool, self._roster.running, block_id)

    def block_map(self) -> tuple[BlockInfo, ...]:
        """Every block, in order of id."""
        return describe_blocks(self.kv.pool, self._roster.running)

    def count_resident(self, token_ids: list[int]) -> int:
        """How many of the first tokens need not be computed again; see engine/residency.py."""
        return count_resident(self.kv.pool, self.config, token_ids)

    def check_integrity(self) -> None:
        """Assert all invariants of memory and queues. O(num_blocks + all tokens)."""
        sequences = list(self._roster.sequences.values())
        self.kv.check_integrity(sequences)
        assert self._roster.num_slots <= self.config.max_num_seqs, (
            "too many sequence slots are used"
        )
        self._roster.check_integrity()


def _step_output(
    seq: Sequence,
    *,
    sampled: SampledToken | None = None,
    end: SequenceEnd | None = None,
    embedding: Embedding | None = None,
) -> StepOutput:
    return StepOutput(
        seq.request.request_id, seq.seq_id, seq.index, sampled, end=end, embedding=embedding
    )


def _progress(seq: Sequence) -> StepOutput:
    """How far the prompt is, for a candidate that has not ended."""
    progress = PrefillProgress(seq.num_computed_tokens, seq.num_prompt_tokens)
    return StepOutput(seq.request.request_id, seq.seq_id, _open_index(seq), progress=progress)


def _open_index(seq: Sequence) -> int:
    """Its own, or of a beam search a candidate's that has not ended."""
    group = seq.request.group
    return seq.index if group is None else min(group.open_candidates)
