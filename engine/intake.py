"""Who of those that wait may start in this step, and why the others may not.

A context fits when a sequence slot is free for each of its candidates, and its blocks (room for one more token, and one
tail more per further candidate or beam, included) are available beyond what those that run will need soon: the rest of their
contexts, or one block for each that decodes. Without that block they would push out what has just come in.

The queue is looked at from the front. One that does not fit is passed by: those behind it that fit may start, but no more
than MAX_OVERTAKES of them in all the time that it waits. Then nobody behind it starts before it, so what runs comes to its
end and it fits. A preempted sequence is not passed by at all: somebody is reading an answer that stands still.

A hit inside a block is copied, and its source, if nobody holds it, is one block more for the length of a step. That is a
luxury: it is had only from the blocks that nobody needs, and never keeps anyone from starting.

A preempted candidate lets a sibling that computes their prompt go first, and then shares the prompt's blocks with it.
"""

from dataclasses import dataclass

from engine.config import SchedulerConfig
from engine.kv_cache_manager import KVCacheManager
from engine.prefix_cache import PartHit
from engine.roster import Roster
from engine.sequence import Sequence, SequenceStatus

MAX_LOOKAHEAD = 8
"""How many are considered although those before them want the whole budget of the step, or do not fit."""

MAX_OVERTAKES = 16
"""How many of those behind it may start while one that does not fit waits for its first step."""


@dataclass(slots=True)
class _Room:
    """What is left for those that wait: sequence slots, blocks, and starts until somebody has been passed by enough."""

    num_slots: int
    num_blocks: int
    num_starts: int

    @property
    def is_full(self) -> bool:
        """Whether nobody can fit."""
        return self.num_slots <= 0 or self.num_blocks <= 0 or self.num_starts <= 0


class Intake:
    """Finds who may start; knows of the others, until it looks again, what they wait for."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, roster: Roster) -> None:
        self._config, self._kv, self._roster = config, kv, roster
        self._fitting: dict[Sequence, int] = {}
        self._too_large: list[Sequence] = []
        self._deferred: list[Sequence] = []
        self._is_closed = False
        self._num_spare = 0

    def find(self, budget: int, prefills: list[Sequence]) -> dict[Sequence, int]:
        """Those that fit all together beside the running `prefills`, each with how many tokens it has to compute."""
        self._fitting, self._too_large, self._deferred, self._is_closed = {}, [], [], False
        if not self._roster.waiting:
            return self._fitting
        room = self._measure_room(prefills)
        budget -= sum(seq.num_uncomputed_tokens for seq in prefills)
        for seq in self._roster.waiting:
            if budget <= 0 and len(self._fitting) >= MAX_LOOKAHEAD:
                break
            if room.is_full or len(self._too_large) >= MAX_LOOKAHEAD:
                self._is_closed = True
                break
            if self._is_behind_a_sibling(seq):
                self._deferred.append(seq)
            else:
                budget -= self._consider(seq, room)
        self._num_spare = room.num_blocks
        return self._fitting

    def may_copy(self, part: PartHit) -> bool:
        """Whether there is a block to spare for as long as a copy needs its source; takes it if need be."""
        is_live = self._kv.is_live(part.block_id)
        if not is_live and self._num_spare <= 0:
            return False
        self._num_spare -= not is_live
        return True

    def note_start(self, seq: Sequence) -> None:
        """`seq` starts now: it overtakes those before it that do not fit."""
        if seq.status is SequenceStatus.WAITING:
            for other in self._too_large:
                if self._roster.is_before(other, seq):
                    other.request.num_overtakes += 1

    def reason(self, seq: Sequence) -> str:
        """What a waiting sequence waits for: capacity (blocks or slots, or behind one that does), a sibling, or budget."""
        if seq in self._deferred:
            return "deferred"
        is_short = seq in self._too_large or (self._is_closed and seq not in self._fitting)
        return "capacity" if is_short else "budget"

    @property
    def num_deferred(self) -> int:
        """How many let a sibling go first."""
        return sum(map(_waits, self._deferred))

    @property
    def num_short(self) -> int:
        """How many wait for blocks or slots. O(those that `find` looked at)."""
        if self._is_closed:
            num_others = sum(map(_waits, self._fitting)) + self.num_deferred
            return len(self._roster.waiting) - num_others
        return sum(map(_waits, self._too_large))

    def _measure_room(self, prefills: list[Sequence]) -> _Room:
        num_slots = self._config.max_num_seqs - self._roster.num_slots
        num_decodes = len(self._roster.running) - len(prefills)
        num_reserved = num_decodes + sum(map(self._kv.num_missing_blocks, prefills))
        return _Room(num_slots, self._kv.pool.num_available - num_reserved, num_slots)

    def _consider(self, seq: Sequence, room: _Room) -> int:
        """Take the room that `seq` needs; returns how many tokens it has to compute, 0 if it does not fit."""
        hits = self._kv.lookup(seq)
        num_slots = 1 + len(seq.followers)
        num_blocks = self._kv.num_missing_blocks(seq) - self._kv.num_live(hits)
        if num_slots > room.num_slots or num_blocks > room.num_blocks:
            self._too_large.append(seq)
            room.num_starts = min(room.num_starts, _num_overtakes_left(seq))
            return 0
        room.num_slots -= num_slots
        room.num_blocks -= num_blocks
        room.num_starts -= 1
        part = self._kv.lookup_part(seq, hits)
        num_hits = len(hits) * self._config.block_size + (part.num_tokens if part else 0)
        self._fitting[seq] = seq.num_joint_tokens - num_hits
        return self._fitting[seq]

    def _is_behind_a_sibling(self, seq: Sequence) -> bool:
        siblings = seq.request.sequences
        if len(siblings) == 1 or not self._config.enable_prefix_caching:
            return False
        size = self._config.block_size
        num_shared = seq.num_prompt_tokens // size * size
        return any(self._num_known(s) < num_shared for s in siblings if s is not seq)

    def _num_known(self, seq: Sequence) -> float:
        """How many tokens of `seq` are in the pool, if it runs or may start; else more than any prompt has."""
        if seq in self._fitting:
            return seq.num_joint_tokens - self._fitting[seq]
        return seq.num_computed_tokens if seq.status is SequenceStatus.RUNNING else float("inf")


def _num_overtakes_left(seq: Sequence) -> int:
    is_first_wait = seq.status is SequenceStatus.WAITING
    return MAX_OVERTAKES - seq.request.num_overtakes if is_first_wait else 0


def _waits(seq: Sequence) -> bool:
    return seq.status in (SequenceStatus.WAITING, SequenceStatus.PREEMPTED)
