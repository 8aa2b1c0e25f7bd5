"""The life of requests: queued, planned step by step, forked, ended. What runs in a step is the planner's choice.

`schedule` and `update` alternate. Abort and finish may come at any time, also between the two: what they ended is then
ignored in the update.
"""

import itertools
import time

from engine.admission import check_request, max_output_tokens
from engine.beam_groups import BeamGroups
from engine.config import SchedulerConfig
from engine.counterfactuals import Counterfactuals
from engine.endings import Endings
from engine.kv_cache_manager import KVCacheManager
from engine.outputs import (
    Embedding,
    Failure,
    FinishReason,
    ModelRunnerOutput,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
    StepOutput,
)
from engine.planner import Planner
from engine.pooling import StateSum
from engine.reports import EndedRequests, Tally
from engine.roster import Roster
from engine.scheduler_view import SchedulerView
from engine.sequence import Request, Sequence, SequenceStatus
from engine.step_outputs import progress_made, scores_told, step_output
from engine.watchdog import Watchdog


class Scheduler:
    """Owns every live request, and through `kv` all KV memory; `view` is for who only looks. One thread only."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.kv = kv = KVCacheManager(config)
        self._roster = roster = Roster()
        self._tally = tally = Tally()
        counterfactuals, ended = Counterfactuals(config), EndedRequests()
        self._beams = BeamGroups(config, kv, roster, tally, counterfactuals)
        self._planner = Planner(config, kv, roster, tally, self._beams)
        self._watchdog = watchdog = Watchdog(config, kv, roster)
        self._endings = Endings(kv, roster, self._beams, watchdog, tally, counterfactuals, ended)
        intake = self._planner.intake
        self.view = SchedulerView(config, kv, roster, intake, tally, counterfactuals, ended)
        self._seq_ids = itertools.count()
        self._plan: SchedulerOutput | None = None
        self._ended: list[StepOutput] = []

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
            return self._endings.end_beams(request, indices, FinishReason.ABORT)
        sequences = request.sequences if request else []
        chosen = [seq for seq in sequences if index is None or seq.index == index]
        return self._endings.end_all(chosen, FinishReason.ABORT)

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
        return self._endings.end_all([seq], reason)

    def fail_step(self, error: str) -> list[StepOutput]:
        """The plan could not be executed: end what was in it, as its blocks hold nobody knows what."""
        plan, self._plan = self._plan, None
        assert plan is not None, "no step is under way"
        self.kv.release_copies()
        holders = [self._roster.holder(entry.seq_id) for entry in plan.scheduled]
        lost = [seq for holder in holders if holder for seq in (holder, *holder.followers)]
        self._roster.forget_heirs()
        return self._take_ended() + self._end_with_error(lost, error)

    def fail_all(self, error: str) -> list[StepOutput]:
        """End everything, as the engine cannot go on."""
        outputs = self.fail_step(error) if self._plan else self._take_ended()
        return outputs + self._end_with_error(list(self._roster.sequences.values()), error)

    def _end_with_error(self, sequences: list[Sequence], error: str) -> list[StepOutput]:
        return self._endings.end_all(sequences, FinishReason.ERROR, Failure(error))

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
            self._ended += self._end_with_error([seq, *seq.followers], error)
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
                if seq.request.scores is not None:
                    outputs += self._take_scores(seq, entry, output)
                outputs += self._advance(seq, entry, output, now)
        self._plan = None
        self._roster.forget_heirs()
        if plan.scheduled:
            self._tally.num_steps += 1
            self._tally.step_tokens.add(plan.num_scheduled_tokens)
        self._watchdog.note_outputs(outputs)
        return outputs

    # --- what a step did to a sequence -----------------------------------------------------------

    def _take_scores(
        self, seq: Sequence, entry: ScheduledSequence, output: ModelRunnerOutput
    ) -> list[StepOutput]:
        """What the step says about tokens of the prompt."""
        if entry.score is not None:
            scores = seq.request.scores
            assert scores is not None, "only a prompt that wants scores is judged"
            if scores.add(entry.start_position, output.scores[entry.seq_id]):
                self._watchdog.note_draw()
        return scores_told(seq)

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
        outputs = [] if seq.output_token_ids else [progress_made(seq)]
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
            self._endings.note_ends(seq.request, outputs)
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
                error = self._endings.end(seq, FinishReason.ERROR, error=sampled.error)
                return step_output(seq, end=error)
            self._note_token(seq, now)
            seq.append(sampled.token_id, now)
            self._tally.generated_tokens += 1
            if sampled.token_id in seq.end_token_ids:
                reason = FinishReason.STOP
                if sampled.token_id in seq.request.params.stop_token_ids:
                    stop_token_id = sampled.token_id
        if reason is None and len(seq.output_token_ids) >= seq.max_output_tokens:
            reason = FinishReason.LENGTH
        end = self._endings.end(seq, reason, stop_token_id=stop_token_id) if reason else None
        return step_output(seq, sampled=sampled, end=end)

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
            error = Failure("the model's states are not finite numbers")
            return step_output(seq, end=self._endings.end(seq, FinishReason.ERROR, error=error))
        end = self._endings.end(seq, FinishReason.STOP)
        return step_output(seq, end=end, embedding=Embedding(values))

    def _make_sequence(self, request: Request, index: int) -> Sequence:
        params = request.params
        eos = frozenset() if params.ignore_eos else self.config.eos_token_ids
        limit = max_output_tokens(self.config, len(request.prompt_token_ids), params)
        end_token_ids = eos.union(params.stop_token_ids)
        return Sequence(next(self._seq_ids), request, index, limit, end_token_ids)

    def _take_ended(self) -> list[StepOutput]:
        ended, self._ended = self._ended, []
        return ended

    # --- checks ----------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Assert all invariants of memory and queues. O(num_blocks + all tokens)."""
        sequences = list(self._roster.sequences.values())
        self.kv.check_integrity(sequences)
        assert self._roster.num_slots <= self.config.max_num_seqs, (
            "too many sequence slots are used"
        )
        self._roster.check_integrity()
