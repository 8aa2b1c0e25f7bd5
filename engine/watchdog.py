"""Notices work that is pending while nothing comes of it, says so once, and names the sequence to end.

Two signs. An empty plan with a queue: nothing runs, so what the head of the queue lacks will never be freed. And too many
steps in a row without a token drawn or judged or a sequence ended: while nobody draws, at least half of the token budget goes to
the first of those that run, which is never preempted while others run. So after `max_idle_steps` (twice the steps that the
longest context takes at that rate, and SLACK) the rules of planning have failed.
"""

import logging

from engine.config import SchedulerConfig
from engine.kv_cache_manager import KVCacheManager
from engine.outputs import SchedulerOutput, StepOutput
from engine.roster import Roster
from engine.sequence import Sequence

SLACK = 100
"""Idle steps that are always allowed: the first of those that run may change."""

logger = logging.getLogger(__name__)


class Watchdog:
    """Sees every plan and every step's outputs. Silent after an alarm until something comes of a step again."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, roster: Roster) -> None:
        self._kv, self._roster = kv, roster
        share = -(-config.max_num_batched_tokens // 2)
        self.max_idle_steps = SLACK + 2 * -(-config.max_model_len // share)
        self._num_idle_steps = 0
        self._is_silent = False

    def note_outputs(self, outputs: list[StepOutput]) -> None:
        """What came of the step."""
        if any(output.sampled for output in outputs):
            self.note_draw()

    def note_draw(self) -> None:
        """A token has been drawn, or one of a prompt judged for the first time, or a search has come forward."""
        self._num_idle_steps, self._is_silent = 0, False

    def note_end(self) -> None:
        """A sequence has ended, for whatever reason."""
        self._num_idle_steps = 0

    def find_culprit(self, plan: SchedulerOutput) -> tuple[Sequence, str] | None:
        """Who must end so that the others can go on, and what to tell its reader; None as long as all is well."""
        running, waiting = self._roster.running, self._roster.waiting
        self._num_idle_steps += 1
        if not plan.scheduled and waiting:
            return self._accuse(waiting[0], "no step is possible")
        if plan.scheduled and self._num_idle_steps > self.max_idle_steps:
            return self._accuse(running[0], f"nothing came of {self.max_idle_steps} steps")
        return None

    def _accuse(self, seq: Sequence, sign: str) -> tuple[Sequence, str]:
        pool = self._kv.pool
        error = (
            f"{sign}: {self._kv.num_missing_blocks(seq)} blocks are needed, {pool.num_available} of "
            f"{pool.counts.total} are available, {len(self._roster.running)} sequences run"
        )
        if not self._is_silent:
            logger.error(
                "request %s: %s, %s wait; it has computed %s of %s tokens",
                seq.request.request_id,
                error,
                len(self._roster.waiting),
                seq.num_computed_tokens,
                seq.num_tokens,
            )
        self._is_silent = True
        return seq, error
