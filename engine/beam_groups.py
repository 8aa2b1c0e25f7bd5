"""Keeps the beams of a search together: in memory, in the queue, and at their end.

A beam that goes on keeps its blocks. One that does not frees them in the same step, and its sequence becomes a further
continuation of another beam by a fork: nothing is copied but a tail that is written to.

Beams are pushed out together, and come back as one path that forks where they part. Sorted by their tokens, each has the
most in common with the one before it; there it forks (`fork_position`) and takes along those behind it that part later. So
what beams have in common is computed once for all of them, and the group needs just the blocks that it had. It goes on
when every beam has only its last token to compute.

A search whose next step would need more blocks than there are ends as if it had reached its limit: nobody else's end
would make room for it.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from engine.beam_search import BeamSearch, Continuation, Hypothesis
from engine.config import SchedulerConfig
from engine.counterfactuals import Counterfactuals
from engine.kv_cache_manager import KVCacheManager
from engine.outputs import (
    Failure,
    FinishReason,
    KVUsage,
    ModelRunnerOutput,
    SampledToken,
    SequenceEnd,
    StepOutput,
    Usage,
)
from engine.reports import Tally
from engine.roster import Roster
from engine.sequence import BeamGroup, Request, Sequence, SequenceStatus

NO_BLOCKS = KVUsage(0, 0, 0, 0.0)
EMPTY = Hypothesis((), 0.0, 0.0, is_stopped=False)


class BeamGroups:
    """The beams among those in `roster`, over the blocks of `kv`; counts what it does in `tally`."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        roster: Roster,
        tally: Tally,
        counterfactuals: Counterfactuals,
    ) -> None:
        self._num_blocks = config.num_blocks
        self._kv, self._roster, self._tally = kv, roster, tally
        self._counterfactuals = counterfactuals

    def form(self, request: Request) -> None:
        """Begin the search that a new request asks for, if it does."""
        params, first = request.params, request.sequences[0]
        if params.beams is not None:
            search = BeamSearch(params, first.end_token_ids, first.max_output_tokens)
            request.group = BeamGroup(search, set(range(params.n)))

    # --- running ---------------------------------------------------------------------------------

    def advance(self, request: Request, output: ModelRunnerOutput, now: float) -> list[StepOutput]:
        """Take a search, all of whose beams are computed, one step further; returns its end if it is done."""
        search, beams = _group(request).search, request.sequences
        if beams[0].max_output_tokens == 0:
            return self._conclude(request)
        if beams[0].followers:
            self._roster.release_followers(beams[0])
        drawn = {slot: output.samples[beams[slot].seq_id] for slot in search.slots}
        continuations = search.advance(drawn)
        if search.is_done:
            return self._conclude(request)
        self._go_on(beams, continuations, now)
        if self._fits(beams):
            return []
        search.conclude()
        return self._conclude(request)

    def part(self, leader: Sequence) -> bool:
        """Fork those followers that part from `leader` here; returns whether that brings the group forward."""
        bunches = [[leader]]
        for seq in leader.followers:
            if seq.fork_position == leader.num_computed_tokens:
                bunches.append([])
            bunches[-1].append(seq)
        for bunch in bunches[1:]:
            self._kv.fork(leader, bunch[0])
            self._roster.part(leader, bunch)
        group = _group(leader.request)
        if not group.is_gathered:
            group.is_gathered = all(map(_has_caught_up, leader.request.sequences))
        return len(bunches) > 1 or _has_caught_up(leader)

    def preempt(self, request: Request) -> None:
        """Take all blocks from the beams and put them back into the queue."""
        beams = sorted(request.sequences, key=lambda seq: seq.output_token_ids)
        for seq in beams:
            self._kv.free(seq)
        for before, seq in pairwise(beams):
            seq.fork_position = seq.num_prompt_tokens + _num_common(
                before.output_token_ids, seq.output_token_ids
            )
        self._roster.gather(beams)
        _group(request).is_gathered = not beams[0].output_token_ids

    def num_stored_tokens(self, request: Request) -> int:
        """How many tokens the beams would have to compute again if they were preempted, at most."""
        return self._kv.num_stored_tokens(request.sequences)

    # --- ends ------------------------------------------------------------------------------------

    def end(
        self, request: Request, indices: Iterable[int], reason: FinishReason, error: Failure | None
    ) -> list[StepOutput]:
        """End candidates without an answer. With the last that is wanted the search ends too."""
        open_candidates = _group(request).open_candidates
        chosen = sorted(open_candidates.intersection(indices))
        open_candidates.difference_update(chosen)
        kv = self._leave(request) if chosen and not open_candidates else NO_BLOCKS
        ends = [_end(request, reason, NO_BLOCKS if i else kv, error) for i in range(len(chosen))]
        return [_output(request, i, end=end) for i, end in zip(chosen, ends, strict=True)]

    def _conclude(self, request: Request) -> list[StepOutput]:
        """The end of a search that is done: its best hypotheses, for the candidates that are still wanted."""
        group, kv = _group(request), self._leave(request)
        outputs: list[StepOutput] = []
        for index in sorted(group.open_candidates):
            hypothesis = group.search.hypotheses[index] if group.search.hypotheses else EMPTY
            outputs += _answer(request, index, hypothesis, NO_BLOCKS if outputs else kv)
            self._tally.generated_tokens += len(hypothesis.tokens)
        group.open_candidates.clear()
        return outputs

    def _leave(self, request: Request) -> KVUsage:
        """End the stay of all beams, and free their blocks."""
        for seq in request.sequences:
            self._counterfactuals.note_end(seq)
        blocks = {i for seq in request.sequences for i in seq.block_table}
        num_shared = sum(self._kv.pool.blocks[i].ref_count > 1 for i in blocks)
        started = time.perf_counter()
        num_released = sum(map(self._kv.free, request.sequences))
        release_ms = (time.perf_counter() - started) * 1e3
        self._roster.gather(request.sequences)
        for seq in reversed(request.sequences):
            self._roster.leave(seq)
        return KVUsage(len(blocks) - num_shared, num_shared, num_released, release_ms)

    # --- memory ----------------------------------------------------------------------------------

    def _go_on(self, beams: list[Sequence], continuations: list[Continuation], now: float) -> None:
        """Give each sequence its next beam: those that end first, so that their blocks are free for the others."""
        going_on = {c.parent for c in continuations}
        for seq in beams:
            if seq.index not in going_on:
                self._kv.free(seq)
        for c in continuations:
            if c.slot != c.parent:
                self._fork(beams[c.parent], beams[c.slot])
        for c in continuations:
            beams[c.slot].append(c.token_id, now)

    def _fork(self, parent: Sequence, child: Sequence) -> None:
        self._kv.fork(parent, child)
        child.become(parent)
        self._tally.forks += 1

    def _fits(self, beams: list[Sequence]) -> bool:
        """Whether the pool could hold the next step of these beams if nobody else were there."""
        if sum(len(seq.block_table) + 1 for seq in beams) <= self._num_blocks:
            return True
        held = {block_id for seq in beams for block_id in seq.block_table}
        return len(held) + self._kv.num_fresh_blocks(beams) <= self._num_blocks


def _group(request: Request) -> BeamGroup:
    assert request.group is not None, f"request {request.request_id} is no beam search"
    return request.group


def _has_caught_up(seq: Sequence) -> bool:
    return seq.status is SequenceStatus.RUNNING and seq.num_uncomputed_tokens == 1


def _num_common(left: list[int], right: list[int]) -> int:
    """How many tokens two lists of the same length have in common from the first on."""
    pairs = zip(left, right, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(left))


def _answer(request: Request, index: int, hypothesis: Hypothesis, kv: KVUsage) -> list[StepOutput]:
    """One output per token, the end in the last."""
    *tokens, last = hypothesis.tokens or (None,)
    reason, stop_token_id = FinishReason.LENGTH, None
    if hypothesis.is_stopped:
        assert last is not None, "an end token ends an answer without tokens"
        reason = FinishReason.STOP
        if last.token_id in request.params.stop_token_ids:
            stop_token_id = last.token_id
    end = _end(request, reason, kv, None)
    end = replace(
        end,
        usage=replace(end.usage, completion_tokens=len(hypothesis.tokens)),
        stop_token_id=stop_token_id,
        cumulative_logprob=hypothesis.cumulative_logprob,
    )
    outputs = [_output(request, index, sampled=token) for token in tokens]
    return [*outputs, _output(request, index, sampled=last, end=end)]


def _end(request: Request, reason: FinishReason, kv: KVUsage, error: Failure | None) -> SequenceEnd:
    """An end without an answer."""
    first = request.sequences[0]
    usage = Usage(first.num_prompt_tokens, 0, first.num_cached_tokens)
    return SequenceEnd(reason, usage, first.timings(time.monotonic()), kv, error=error)


def _output(
    request: Request,
    index: int,
    *,
    sampled: SampledToken | None = None,
    end: SequenceEnd | None = None,
) -> StepOutput:
    seq_id = request.sequences[index].seq_id
    return StepOutput(request.request_id, seq_id, index, sampled, end=end)
