"""Who computes what in the next step, and who gives way when memory is short. No tensors, no text.

The rules, in order, each step:

1. Running sequences with one token to compute come first, in order of rank. If the pool is short of what they need
   together, victims are preempted until it is not: always of the lowest priority that runs, the one that would have to
   compute the fewest tokens again, the youngest of equals. The first in rank is spared while another runs, so it
   always comes to its end. Victims hold nothing and are recomputed later.
2. Running sequences with more to compute, and waiting ones that fit (`Intake`), share what is left of the token budget
   (`share_budget`): half goes to those with the least to compute, the rest by rank. So a short prompt never waits for
   all of a long one, and the first never starves. Of prompts whose tokens are judged, little is computed beside others.
   Room that is left takes their drafts: tokens that they may go on with.
3. The beams of a search compute their last token in one step. They are preempted together.
4. A running sequence whose chunk finds no block sits the step out; if nothing at all could run, a victim is preempted.
"""

import logging
import time
from dataclasses import dataclass, field

from engine.admission import share_budget
from engine.beam_groups import BeamGroups
from engine.config import SchedulerConfig
from engine.drafts import Drafter
from engine.intake import Intake
from engine.kv_cache_manager import KVCacheManager
from engine.outputs import BlockCopy, SampleRequest, ScheduledSequence, SchedulerOutput
from engine.prompt_scores import limit_judged
from engine.reports import Tally
from engine.roster import Roster, rank
from engine.sequence import Sequence, SequenceStatus

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step:
    """A step while it is put together; `budget` is how many tokens it still takes."""

    budget: int
    scheduled: list[ScheduledSequence] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)

    def add(
        self, seq: Sequence, num_tokens: int, block_copies: list[BlockCopy], draft: list[int]
    ) -> None:
        """Compute the next `num_tokens` tokens of `seq`; if these are all it has, the draft behind them, and sample."""
        start, end = seq.num_computed_tokens, seq.num_computed_tokens + num_tokens
        scores = seq.request.scores
        self.scheduled.append(
            ScheduledSequence(
                seq.seq_id,
                seq.token_ids[start:end] + draft,
                start,
                seq.block_table,
                _samples(seq, draft) if end == seq.num_tokens else (),
                seq.request.state_sum is not None,
                len(draft),
                None if scores is None else scores.request(start, num_tokens),
            )
        )
        self.block_copies += block_copies
        self.budget -= num_tokens + len(draft)


class Planner:
    """Makes plans for those in `roster`, with the blocks of `kv`; counts what it does in `tally`."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        roster: Roster,
        tally: Tally,
        beams: BeamGroups,
    ) -> None:
        self._config, self._kv, self._roster, self._tally = config, kv, roster, tally
        self._beams = beams
        self._drafter = Drafter(config.num_speculative_tokens)
        self.intake = Intake(config, kv, roster)

    def plan(self) -> SchedulerOutput:
        """The next step; it is empty only if nothing runs and nobody in the queue may start."""
        step = _Step(self._config.max_num_batched_tokens)
        self._schedule_decodes(step)
        self._schedule_prefills(step)
        while not step.scheduled and self._roster.running:
            self.preempt(self._choose_victim())
            self._schedule_prefills(step)
        num_tokens = self._config.max_num_batched_tokens - step.budget
        return SchedulerOutput(tuple(step.scheduled), tuple(step.block_copies), num_tokens)

    def preempt(self, seq: Sequence) -> None:
        """Take everything from a running sequence, or from its whole group of beams, and put it back into the queue."""
        if seq.request.group is not None:
            self._beams.preempt(seq.request)
        else:
            self._roster.preempt(seq)
            self._kv.free(seq)
        self._tally.preemptions += 1
        seq.request.note("preempted", time.monotonic(), seq.index)
        logger.debug("preempted sequence %s", seq.seq_id)

    def _choose_victim(self) -> Sequence:
        """Of the lowest priority that runs, who loses least, the youngest of equals; the first only if it is alone."""
        first, *others = self._roster.running
        if first.request.group is not None:
            others = [seq for seq in others if seq.request is not first.request]
        if not others:
            return first
        lowest = others[-1].request.params.priority
        victims = [seq for seq in reversed(others) if seq.request.params.priority == lowest]
        return min(victims, key=self._num_lost_tokens)

    def _num_lost_tokens(self, seq: Sequence) -> int:
        if seq.request.group is not None:
            return self._beams.num_stored_tokens(seq.request)
        return self._kv.num_lost_tokens(seq)

    def _schedule_decodes(self, step: _Step) -> None:
        decodes = self._make_room(step.budget)
        copies = [self._kv.allocate_slots(seq, 1) for seq in decodes]
        drafts = self._drafter.draft(decodes, (step.budget - len(decodes)) // 2)
        for seq, block_copies in zip(decodes, copies, strict=True):
            assert block_copies is not None, f"no block for sequence {seq.seq_id}"
            if block_copies:
                seq.request.note("copy_on_write", time.monotonic(), seq.index)
            draft = drafts.get(seq, [])
            if draft and self._kv.allocate_slots(seq, 1 + len(draft)) is None:
                draft = []
            step.add(seq, 1, block_copies, draft)

    def _make_room(self, budget: int) -> list[Sequence]:
        """The sequences with one token to compute, as many as the budget takes, once the pool has what they need."""
        while True:
            decodes = [seq for seq in self._roster.running if seq.num_ready_tokens == 1]
            _cut(decodes, budget)
            num_available = self._kv.pool.num_available
            if len(decodes) <= num_available or self._kv.num_fresh_blocks(decodes) <= num_available:
                return decodes
            self.preempt(self._choose_victim())

    def _schedule_prefills(self, step: _Step) -> None:
        prefills = [seq for seq in self._roster.running if seq.num_uncomputed_tokens > 1]
        wants = self.intake.find(step.budget, prefills) | {
            seq: seq.num_ready_tokens for seq in prefills if seq.num_ready_tokens > 1
        }
        prefills = sorted(wants, key=rank)
        judged = [seq.request.is_being_judged for seq in prefills]
        limited = limit_judged([wants[seq] for seq in prefills], judged, bool(step.scheduled))
        grants = share_budget(limited, step.budget)
        for seq, grant in zip(prefills, grants, strict=True):
            if grant:
                self._schedule_chunk(seq, grant, step)

    def _schedule_chunk(self, seq: Sequence, grant: int, step: _Step) -> None:
        is_new = seq.status is not SequenceStatus.RUNNING
        if is_new:
            step.block_copies += self._admit(seq)
        num_tokens = min(grant, seq.num_ready_tokens)
        block_copies = self._kv.allocate_slots(seq, num_tokens)
        assert block_copies is not None or not is_new, f"sequence {seq.seq_id} did not fit"
        if block_copies is not None:
            step.add(seq, num_tokens, block_copies, [])

    def _admit(self, seq: Sequence) -> list[BlockCopy]:
        """Let `seq` run, from where the prefix cache ends; returns the copy that this takes, if any."""
        is_first_pass, now = seq.status is SequenceStatus.WAITING, time.monotonic()
        self.intake.note_start(seq)
        self._roster.admit(seq)
        block_copies = self._attach(seq)
        kind = "started" if is_first_pass else "resumed"
        seq.request.note(kind, now, seq.index, seq.num_computed_tokens)
        if is_first_pass:
            seq.request.first_scheduled_time = now
            self._tally.queue.add(now - seq.request.arrival_time)
            seq.num_cached_tokens = seq.num_computed_tokens
            if not seq.request.needs_every_token:
                self._tally.prefix_queries += seq.num_tokens
            self._tally.prefix_hits += seq.num_cached_tokens
            self._tally.prompt_tokens += seq.num_prompt_tokens
        return block_copies

    def _attach(self, seq: Sequence) -> list[BlockCopy]:
        hits = self._kv.lookup(seq)
        part = self._kv.lookup_part(seq, hits)
        self._kv.attach(seq, hits)
        if part is None or not self.intake.may_copy(part):
            return []
        return [self._kv.attach_part(seq, part)]


def _cut(decodes: list[Sequence], budget: int) -> None:
    """Leave those of best rank that the budget takes; beams of one search, which stand together, all or none."""
    if len(decodes) > budget:
        first_left_out = decodes[budget].request
        del decodes[budget:]
        while first_left_out.group and decodes and decodes[-1].request is first_left_out:
            decodes.pop()


def _samples(leader: Sequence, draft: list[int]) -> tuple[SampleRequest, ...]:
    """One draw for the sequence and one for each candidate that forks after this step; none if none is wanted.

    With a draft, which only a sequence without followers has, one more behind each of its tokens. A beam search chooses all that its beams go on with from the one draw.
    """
    if leader.max_output_tokens == 0:
        return ()
    if leader.request.group is not None:
        return (leader.sample_request(),)
    if draft:
        return leader.sample_requests(draft)
    return (leader.sample_request(), *(seq.sample_request() for seq in leader.followers))
