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

`schedule` and `update` alternate. Abort and finish may come at any time, also between the two.
"""

import itertools
import logging
import time
from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.admission import check_request, max_output_tokens, share_budget
from engine.config import SchedulerConfig
from engine.kv_cache_manager import KVCacheManager
from engine.outputs import (
    BlockCopy,
    FinishReason,
    KVUsage,
    ModelRunnerOutput,
    PrefillProgress,
    SampledToken,
    SampleRequest,
    ScheduledSequence,
    SchedulerOutput,
    SequenceEnd,
    StepOutput,
)
from engine.reports import counterfactual_bytes, describe_blocks, describe_request
from engine.sequence import Request, Sequence, SequenceStatus
from engine.stats import BlockInfo, Counters, EngineStats, RequestInfo

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


class Scheduler:
    """Owns every live request, and through `kv` all KV memory. One thread only."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.kv = KVCacheManager(config)
        self._requests: dict[int, Request] = {}
        self._sequences: dict[int, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._seq_ids = itertools.count()
        self._plan: SchedulerOutput | None = None
        self._heirs: dict[int, Sequence] = {}
        self._ended: list[StepOutput] = []
        self._num_steps = 0
        self._num_preemptions = self._num_forks = self._num_requests = 0
        self._num_prefix_queries = self._num_prefix_hits = 0
        self._num_prompt_tokens = self._num_generated_tokens = 0
        self._num_fitting = 0
        self._is_short = False
        self._is_alarmed = False

    # --- requests come and go --------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue `request` and make its sequences. Raises RequestError, and holds nothing, if it can never run."""
        assert request.request_id not in self._requests, (
            f"request {request.request_id} runs already"
        )
        check_request(self.config, request.prompt_token_ids, request.params)
        request.sequences = [self._make_sequence(request, i) for i in range(request.params.n)]
        leader, *followers = request.sequences
        leader.status, leader.followers = SequenceStatus.WAITING, followers
        self._requests[request.request_id] = request
        self._sequences.update((seq.seq_id, seq) for seq in request.sequences)
        self._waiting.append(leader)
        self._num_requests += 1

    def abort(self, request_id: int, index: int | None = None) -> list[StepOutput]:
        """End one candidate, or all that still live, and free their blocks now. What has ended stays as it is."""
        request = self._requests.get(request_id)
        sequences = request.sequences if request else []
        chosen = [seq for seq in sequences if index is None or seq.index == index]
        return self._end_all(chosen, FinishReason.ABORT)

    def finish(self, seq_id: int, reason: FinishReason) -> list[StepOutput]:
        """End a sequence for a reason found outside, such as a stop string. Ignored if it has ended."""
        seq = self._sequences.get(seq_id)
        return [] if seq is None else self._end_all([seq], reason)

    def fail_step(self, error: str) -> list[StepOutput]:
        """The plan could not be executed: end what was in it, as its blocks hold nobody knows what."""
        plan, self._plan = self._plan, None
        assert plan is not None, "no step is under way"
        self.kv.release_copies()
        holders = [self._holder(entry.seq_id) for entry in plan.scheduled]
        lost = [seq for holder in holders if holder for seq in (holder, *holder.followers)]
        return self._take_ended() + self._end_all(lost, FinishReason.ERROR, error)

    def fail_all(self, error: str) -> list[StepOutput]:
        """End everything, as the engine cannot go on."""
        outputs = self.fail_step(error) if self._plan else self._take_ended()
        return outputs + self._end_all(list(self._sequences.values()), FinishReason.ERROR, error)

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report something."""
        return bool(self._running or self._waiting or self._ended)

    # --- one step --------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next step, by the rules above. `update` (or `fail_step`) must follow."""
        assert self._plan is None, "the last plan was neither updated nor failed"
        step = _Step(self.config.max_num_batched_tokens)
        self._schedule_decodes(step)
        self._schedule_prefills(step)
        while not step.scheduled and self._running:
            self._preempt_youngest()
            self._schedule_prefills(step)
        if step.scheduled:
            self._is_alarmed = False
        elif self._waiting:
            self._drop_head()
        num_tokens = self.config.max_num_batched_tokens - step.budget
        self._plan = SchedulerOutput(tuple(step.scheduled), tuple(step.block_copies), num_tokens)
        return self._plan

    def update(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[StepOutput]:
        """Take in what the step computed and drew. Sequences that ended meanwhile are ignored."""
        assert plan is self._plan, "this is not the plan that is under way"
        now = time.monotonic()
        self.kv.release_copies()
        outputs = self._take_ended()
        for entry in plan.scheduled:
            seq = self._holder(entry.seq_id)
            if seq is not None:
                outputs += self._advance(seq, len(entry.token_ids), output, now)
        self._plan = None
        self._heirs.clear()
        self._num_steps += 1
        return outputs

    def _schedule_decodes(self, step: _Step) -> None:
        for seq in self._running.copy():
            if step.budget == 0:
                break
            if seq.status is SequenceStatus.RUNNING and seq.num_uncomputed_tokens == 1:
                block_copies = self._allocate_or_preempt(seq)
                if block_copies is not None:
                    step.add(seq, 1, block_copies)

    def _allocate_or_preempt(self, seq: Sequence) -> list[BlockCopy] | None:
        while (block_copies := self.kv.allocate_slots(seq, 1)) is None:
            if self._preempt_youngest() is seq:
                return None
        return block_copies

    def _schedule_prefills(self, step: _Step) -> None:
        prefills = [seq for seq in self._running if seq.num_uncomputed_tokens > 1]
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
        if not self._waiting or budget == 0:
            return found
        num_slots = self.config.max_num_seqs - sum(1 + len(seq.followers) for seq in self._running)
        num_blocks = self.kv.pool.num_available - sum(map(self._num_missing_blocks, prefills))
        for seq in self._waiting:
            if num_wanted >= budget and len(found) >= MAX_LOOKAHEAD:
                break
            hits = self.kv.lookup(seq)
            num_slots -= 1 + len(seq.followers)
            num_blocks -= self._num_missing_blocks(seq) - self.kv.num_live(hits)
            if num_slots < 0 or num_blocks < 0:
                self._is_short = True
                break
            num_tokens = seq.num_tokens - len(hits) * self.config.block_size
            found.append((seq, num_tokens))
            num_wanted += num_tokens
        self._num_fitting = len(found)
        return found

    def _num_missing_blocks(self, seq: Sequence) -> int:
        """Blocks `seq` lacks for its context, one more token, and a tail for every candidate to fork from it."""
        num_blocks = seq.num_tokens // self.config.block_size + 1 + len(seq.followers)
        return max(0, min(num_blocks, self.config.num_blocks) - len(seq.block_table))

    def _schedule_chunk(self, seq: Sequence, grant: int, step: _Step) -> None:
        if seq.status is not SequenceStatus.RUNNING:
            self._admit(seq)
        num_tokens = min(grant, seq.num_uncomputed_tokens)
        block_copies = self.kv.allocate_slots(seq, num_tokens)
        if block_copies is not None:
            step.add(seq, num_tokens, block_copies)

    def _admit(self, seq: Sequence) -> None:
        self._waiting.remove(seq)
        self._num_fitting -= 1
        hits = self.kv.lookup(seq)
        self.kv.attach(seq, hits)
        if seq.status is SequenceStatus.WAITING:
            seq.request.first_scheduled_time = time.monotonic()
            seq.num_cached_tokens = seq.num_computed_tokens
            self._num_prefix_queries += seq.num_tokens
            self._num_prefix_hits += seq.num_cached_tokens
            self._num_prompt_tokens += seq.num_prompt_tokens
        seq.status = SequenceStatus.RUNNING
        insort(self._running, seq, key=_age)

    def _preempt_youngest(self) -> Sequence:
        seq = self._running.pop()
        self.kv.free(seq)
        seq.status = SequenceStatus.PREEMPTED
        self._waiting.appendleft(seq)
        self._num_preemptions += 1
        logger.debug("preempted sequence %s", seq.seq_id)
        return seq

    def _drop_head(self) -> None:
        """Nothing runs and the head does not fit: blocks are lost, and waiting would last for ever."""
        head, counts = self._waiting[0], self.kv.pool.counts
        error = (
            f"no step is possible: {self._num_missing_blocks(head)} blocks are needed, "
            f"{self.kv.pool.num_available} of {counts.total} are available, and nothing runs"
        )
        if not self._is_alarmed:
            logger.error("request %s: %s", head.request.request_id, error)
        self._is_alarmed = True
        self._ended += self._end_all([head, *head.followers], FinishReason.ERROR, error)

    # --- what a step did to a sequence -----------------------------------------------------------

    def _advance(
        self, seq: Sequence, num_tokens: int, output: ModelRunnerOutput, now: float
    ) -> list[StepOutput]:
        self.kv.commit(seq, num_tokens)
        progress = None
        if not seq.output_token_ids:
            progress = PrefillProgress(seq.num_computed_tokens, seq.num_prompt_tokens)
        if seq.num_uncomputed_tokens:
            return [_step_output(seq, progress=progress)] if progress else []
        candidates = self._fork_followers(seq) if seq.followers else [seq]
        outputs = [self._accept(s, output.samples.get(s.seq_id), now) for s in candidates]
        if progress:
            outputs.insert(0, _step_output(seq, progress=progress))
        return outputs

    def _fork_followers(self, leader: Sequence) -> list[Sequence]:
        followers, leader.followers = leader.followers, []
        for seq in followers:
            self.kv.fork(leader, seq)
            seq.status = SequenceStatus.RUNNING
            insort(self._running, seq, key=_age)
        self._num_forks += len(followers)
        return [leader, *followers]

    def _accept(self, seq: Sequence, sampled: SampledToken | None, now: float) -> StepOutput:
        reason = stop_token_id = None
        if sampled is not None:
            seq.append(sampled.token_id, now)
            self._num_generated_tokens += 1
            if sampled.token_id in seq.end_token_ids:
                reason = FinishReason.STOP
                if sampled.token_id in seq.request.params.stop_token_ids:
                    stop_token_id = sampled.token_id
        if reason is None and len(seq.output_token_ids) >= seq.max_output_tokens:
            reason = FinishReason.LENGTH
        end = self._end(seq, reason, stop_token_id=stop_token_id) if reason else None
        return _step_output(seq, sampled=sampled, end=end)

    def _end_all(
        self, sequences: Iterable[Sequence], reason: FinishReason, error: str | None = None
    ) -> list[StepOutput]:
        """End those that live. Last first, so that a leader ends after its followers; reported first to last."""
        live = [seq for seq in sequences if seq.status is not SequenceStatus.FINISHED]
        outputs = [_step_output(s, end=self._end(s, reason, error=error)) for s in reversed(live)]
        return outputs[::-1]

    def _end(
        self,
        seq: Sequence,
        reason: FinishReason,
        *,
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> SequenceEnd:
        self._leave(seq)
        num_blocks, num_shared = len(seq.block_table), self.kv.count_shared(seq)
        started = time.perf_counter()
        num_released = self.kv.free(seq)
        release_ms = (time.perf_counter() - started) * 1e3
        kv = KVUsage(num_blocks - num_shared, num_shared, num_released, release_ms)
        seq.status, seq.finish_reason = SequenceStatus.FINISHED, reason
        del self._sequences[seq.seq_id]
        if all(s.status is SequenceStatus.FINISHED for s in seq.request.sequences):
            del self._requests[seq.request.request_id]
        timings = seq.timings(time.monotonic())
        return SequenceEnd(reason, seq.usage(), timings, kv, stop_token_id, error)

    def _leave(self, seq: Sequence) -> None:
        """Take `seq` out of its place; its first follower takes the place over with all that was computed."""
        if seq.status is SequenceStatus.FOLLOWING:
            leader = next(s for s in seq.request.sequences if seq in s.followers)
            leader.followers.remove(seq)
            return
        places = self._running if seq.status is SequenceStatus.RUNNING else self._waiting
        position = places.index(seq)
        if not seq.followers:
            del places[position]
            return
        heir, *heir.followers = seq.followers
        seq.followers = []
        heir.status = seq.status
        self.kv.fork(seq, heir)
        places[position] = self._heirs[seq.seq_id] = heir

    def _holder(self, seq_id: int) -> Sequence | None:
        """Who holds the blocks that a planned sequence had: itself, or its heir; None when it ended without one."""
        while seq_id in self._heirs:
            seq_id = self._heirs[seq_id].seq_id
        return self._sequences.get(seq_id)

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
        num_waiting = len(self._waiting)
        num_short = max(0, num_waiting - self._num_fitting) if self._is_short else 0
        return EngineStats(
            time=time.time(),
            num_steps=self._num_steps,
            blocks=counts,
            tokens_capacity=counts.total * counts.block_size,
            tokens_stored=pool.tokens_stored,
            num_running=len(self._running),
            num_waiting=num_waiting,
            waiting_capacity=num_short,
            waiting_budget=num_waiting - num_short,
            counters=self._counters(),
            counterfactual_bytes=counterfactual_bytes(self.config, pool, self._running),
        )

    def requests(self) -> tuple[RequestInfo, ...]:
        """The live requests in order of arrival."""
        now, reasons = time.monotonic(), {}
        for position, seq in enumerate(self._waiting):
            is_short = self._is_short and position >= self._num_fitting
            reasons[seq.request.request_id] = "capacity" if is_short else "budget"
        return tuple(
            describe_request(request, self.kv.pool, now, reasons.get(request.request_id))
            for request in self._requests.values()
        )

    def block_map(self) -> tuple[BlockInfo, ...]:
        """Every block, in order of id."""
        return describe_blocks(self.kv.pool, self._running)

    def check_integrity(self) -> None:
        """Assert all invariants of memory and queues. O(num_blocks + all tokens)."""
        sequences = list(self._sequences.values())
        self.kv.check_integrity(sequences)
        assert self._running == sorted(self._running, key=_age), "running is out of order"
        num_slots = sum(1 + len(seq.followers) for seq in self._running)
        assert num_slots <= self.config.max_num_seqs, f"{num_slots} sequence slots are used"
        placed = [*self._running, *self._waiting]
        placed += [follower for seq in placed for follower in seq.followers]
        assert sorted(placed, key=_age) == sorted(sequences, key=_age), "a sequence has no place"
        for seq in sequences:
            is_running = seq.status is SequenceStatus.RUNNING
            assert is_running == (seq in self._running), f"sequence {seq.seq_id} is misplaced"
            assert is_running or not seq.block_table, f"sequence {seq.seq_id} waits holding blocks"
        live = {seq.request.request_id for seq in sequences}
        assert live == set(self._requests), "a request outlived its sequences, or the reverse"

    def _counters(self) -> Counters:
        return Counters(
            preemptions=self._num_preemptions,
            forks=self._num_forks,
            cow_copies=self.kv.num_cow_copies,
            prefix_queries=self._num_prefix_queries,
            prefix_hits=self._num_prefix_hits,
            generated_tokens=self._num_generated_tokens,
            prompt_tokens=self._num_prompt_tokens,
            requests=self._num_requests,
        )


def _age(seq: Sequence) -> tuple[int, int]:
    return seq.request.request_id, seq.index


def _samples(leader: Sequence) -> tuple[SampleRequest, ...]:
    """One draw for the sequence and one for each candidate that forks after this step; none if none is wanted."""
    if leader.max_output_tokens == 0:
        return ()
    return (leader.sample_request(), *(seq.sample_request() for seq in leader.followers))


def _step_output(
    seq: Sequence,
    *,
    sampled: SampledToken | None = None,
    progress: PrefillProgress | None = None,
    end: SequenceEnd | None = None,
) -> StepOutput:
    return StepOutput(seq.request.request_id, seq.seq_id, seq.index, sampled, progress, end)
