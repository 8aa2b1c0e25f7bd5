"""One engine, synchronous: `step` schedules, executes, updates. One thread; no text, no queues between threads.

When the model runner raises in a step, `step` raises too; then `fail_step` (to go on with the rest) or `fail_all` (to
stop) ends what cannot go on, so that every accepted request still ends exactly once.
"""

from typing import Protocol

from engine.outputs import FinishReason, ModelRunnerOutput, SchedulerOutput, StepOutput
from engine.scheduler import Scheduler
from engine.sequence import Request
from engine.stats import (
    BlockCells,
    BlockDetail,
    BlockMap,
    EngineStats,
    RequestDetail,
    RequestInfo,
    RequestsReport,
)


class Executor(Protocol):
    """The part of a model runner that a step needs."""

    def execute(self, plan: SchedulerOutput, /) -> ModelRunnerOutput:
        """Do the block copies, compute the tokens, draw one token per SampleRequest."""
        ...


class EngineCore:
    """Scheduler and model runner, joined. Integrity is asserted whenever the engine goes idle."""

    def __init__(self, scheduler: Scheduler, model_runner: Executor) -> None:
        self._scheduler = scheduler
        self._model_runner = model_runner

    def add_request(self, request: Request) -> None:
        """Queue a request; raises RequestError, and holds nothing, if it can never run."""
        self._scheduler.add_request(request)

    def abort(self, request_id: int, index: int | None = None) -> list[StepOutput]:
        """End one candidate, or all; returns the ends. Too late is not an error."""
        return self._checked(self._scheduler.abort(request_id, index))

    def finish(self, seq_id: int, reason: FinishReason, num_unused: int) -> list[StepOutput]:
        """End a sequence for a reason found outside, such as a stop string; its last `num_unused` tokens do not count."""
        return self._checked(self._scheduler.finish(seq_id, reason, num_unused))

    def step(self) -> list[StepOutput]:
        """Run one step and return what it did, sequence by sequence."""
        plan = self._scheduler.schedule()
        output = self._model_runner.execute(plan) if plan.scheduled else ModelRunnerOutput({})
        return self._checked(self._scheduler.update(plan, output))

    def fail_step(self, error: str) -> list[StepOutput]:
        """After `step` raised: end what was in it with `error`; the rest can go on."""
        return self._checked(self._scheduler.fail_step(error))

    def fail_all(self, error: str) -> list[StepOutput]:
        """End everything with `error`."""
        return self._checked(self._scheduler.fail_all(error))

    @property
    def has_work(self) -> bool:
        """Whether `step` would do or report something."""
        return self._scheduler.has_work

    def stats(self) -> EngineStats:
        """The engine as it is between two steps."""
        return self._scheduler.view.stats()

    def requests(self) -> tuple[RequestInfo, ...]:
        """The live requests in order of arrival."""
        return self._scheduler.view.requests()

    def requests_report(self) -> RequestsReport:
        """Live and ended requests, and what sharing saves."""
        return self._scheduler.view.requests_report()

    def request(self, request_id: int) -> RequestDetail | None:
        """A live request, or one that has ended lately, with what happened to it."""
        return self._scheduler.view.request(request_id)

    def block_cells(self) -> BlockCells:
        """Every block in compact form."""
        return self._scheduler.view.block_cells()

    def block(self, block_id: int) -> BlockDetail | None:
        """One block and who holds it."""
        return self._scheduler.view.block(block_id)

    def block_map(self) -> BlockMap:
        """Every block, in order of id; whoever iterates does the work."""
        return self._scheduler.view.block_map()

    def count_resident(self, token_ids: list[int]) -> int:
        """How many of the first tokens need not be computed again."""
        return self._scheduler.view.count_resident(token_ids)

    def _checked(self, outputs: list[StepOutput]) -> list[StepOutput]:
        if outputs and not self.has_work:
            self._scheduler.check_integrity()
        return outputs
