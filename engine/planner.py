"""Who computes what in the next step, and who gives way when memory is short. No tensors, no text.

The rules, in order, each step:

1. Running sequences with one token to compute come first, oldest request first. One that finds no block preempts the
   youngest running sequence, itself in the end. Preempted sequences go to the front of the queue, hold nothing, and
   are recomputed later.
2. Running sequences with more to compute, and waiting ones whose whole context fits, share what is left of the token
   budget (`share_budget`): half goes to those with the least to compute, the rest by age. So a short prompt never
   waits for all of a long one, and the oldest never starves.
3. A context fits when its blocks (room for one more token, and one tail more per further candidate, included) are
   available beyond what running sequences still need for theirs. Waiting is first come, first served: behind one that
   does not fit, nobody is admitted.
4. A running sequence whose chunk finds no block sits the step out; if nothing at all could run, the youngest is
   preempted.
"""

import logging
import time
from dataclasses import dataclass, field

from engine.admission import share_budget
from engine.config import SchedulerConfig
from engine.kv_cache_manager import KVCacheManager
from engine.outputs import BlockCopy, SampleRequest, ScheduledSequence, SchedulerOutput
from engine.reports import Tally
from engine.roster import Roster
from engine.sequence import Sequence, SequenceStatus

MAX_LOOKAHEAD = 8
"""How many waiting sequences are considered although those before them want the whole budget of the step."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step:
    """A step while it is put together; `budget` is how many tokens it still takes."""

    budget: int
    scheduled: list[ScheduledSequence] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)

    def add(self, seq: Sequence, num_tokens: int, block_copies: list[BlockCopy]) -> None:
        """Compute the next `num_tokens` tokens of `seq`; sample if these are all it has."""
        start, end = seq.num_computed_tokens, seq.num_computed_tokens + num_tokens
        samples = _samples(seq) if end == seq.num_tokens else ()
        token_ids = seq.token_ids[start:end]
        self.scheduled.append(
            ScheduledSequence(seq.seq_id, token_ids, start, seq.block_table, samples)
        )
        self.block_copies += block_copies
        self.budget -= num_tokens


class Planner:
    """Makes plans for those in `roster`, with the blocks of `kv`; counts what it does in `tally`."""

    def __init__(
        self, config: SchedulerConfig, kv: KVCacheManager, roster: Roster, tally: Tally
    ) -> None:
        self._config, self._kv, self._roster, self._tally = config, kv, roster, tally
        self._num_fitting = 0
        self._is_short = False

    def plan(self) -> SchedulerOutput:
        """The next step; it is empty only if nothing runs and the head of the queue does not fit."""
        step = _Step(self._config.max_num_batched_tokens)
        self._schedule_decodes(step)
        self._schedule_prefills(step)
        while not step.scheduled and self._roster.running:
            self.preempt_youngest()
            self._schedule_prefills(step)
        num_tokens = self._config.max_num_batched_tokens - step.budget
        return SchedulerOutput(tuple(step.scheduled), tuple(step.block_copies), num_tokens)

    def preempt_youngest(self) -> Sequence:
        """Take everything from the youngest running sequence and put it at the front of the queue."""
        seq = self._roster.preempt_youngest()
        self._kv.free(seq)
        self._tally.preemptions += 1
        logger.debug("preempted sequence %s", seq.seq_id)
        return seq

    def num_missing_blocks(self, seq: Sequence) -> int:
        """Blocks `seq` lacks for its context, one more token, and a tail for every candidate to fork from it."""
        num_blocks = seq.num_tokens // self._config.block_size + 1 + len(seq.followers)
        return max(0, min(num_blocks, self._config.num_blocks) - len(seq.block_table))

    @property
    def num_waiting_capacity(self) -> int:
        """How many wait for blocks or sequence slots, or behind one that does; the others wait for the budget."""
        return max(0, len(self._roster.waiting) - self._num_fitting) if self._is_short else 0

    def _schedule_decodes(self, step: _Step) -> None:
        for seq in self._roster.running.copy():
            if step.budget == 0:
                break
            if seq.status is SequenceStatus.RUNNING and seq.num_uncomputed_tokens == 1:
                block_copies = self._allocate_or_preempt(seq)
                if block_copies is not None:
                    step.add(seq, 1, block_copies)

    def _allocate_or_preempt(self, seq: Sequence) -> list[BlockCopy] | None:
        while (block_copies := self._kv.allocate_slots(seq, 1)) is None:
            if self.preempt_youngest() is seq:
                return None
        return block_copies

    def _schedule_prefills(self, step: _Step) -> None:
        prefills = [seq for seq in self._roster.running if seq.num_uncomputed_tokens > 1]
        wants = [seq.num_uncomputed_tokens for seq in prefills]
        for seq, num_tokens in self._find_admissible(step.budget, prefills, sum(wants)):
            prefills.append(seq)
            wants.append(num_tokens)
        for seq, grant in zip(prefills, share_budget(wants, step.budget), strict=True):
            if grant:
                self._schedule_chunk(seq, grant, step)

    def _find_admissible(
        self, budget: int, prefills: list[Sequence], num_wanted: int
    ) -> list[tuple[Sequence, int]]:
        """The waiting sequences that fit all together, each with how many tokens it has to compute."""
        self._is_short, found = False, []
        if not self._roster.waiting:
            return found
        num_slots = self._config.max_num_seqs - self._roster.num_slots
        num_blocks = self._kv.pool.num_available - sum(map(self.num_missing_blocks, prefills))
        for seq in self._roster.waiting:
            if num_wanted >= budget and len(found) >= MAX_LOOKAHEAD:
                break
            hits = self._kv.lookup(seq)
            num_slots -= 1 + len(seq.followers)
            num_blocks -= self.num_missing_blocks(seq) - self._kv.num_live(hits)
            if num_slots < 0 or num_blocks < 0:
                self._is_short = True
                break
            num_tokens = seq.num_tokens - len(hits) * self._config.block_size
            found.append((seq, num_tokens))
            num_wanted += num_tokens
        self._num_fitting = len(found)
        return found

    def _schedule_chunk(self, seq: Sequence, grant: int, step: _Step) -> None:
        if seq.status is not SequenceStatus.RUNNING:
            self._admit(seq)
        num_tokens = min(grant, seq.num_uncomputed_tokens)
        block_copies = self._kv.allocate_slots(seq, num_tokens)
        if block_copies is not None:
            step.add(seq, num_tokens, block_copies)

    def _admit(self, seq: Sequence) -> None:
        is_first_pass = seq.status is SequenceStatus.WAITING
        self._roster.admit(seq)
        self._num_fitting -= 1
        hits = self._kv.lookup(seq)
        self._kv.attach(seq, hits)
        if is_first_pass:
            seq.request.first_scheduled_time = time.monotonic()
            seq.num_cached_tokens = seq.num_computed_tokens
            self._tally.prefix_queries += seq.num_tokens
            self._tally.prefix_hits += seq.num_cached_tokens
            self._tally.prompt_tokens += seq.num_prompt_tokens


def _samples(leader: Sequence) -> tuple[SampleRequest, ...]:
    """One draw for the sequence and one for each candidate that forks after this step; none if none is wanted."""
    if leader.max_output_tokens == 0:
        return ()
    return (leader.sample_request(), *(seq.sample_request() for seq in leader.followers))
