"""The synchronous engine: steps, idle checks, and a runner that fails."""

import time

import pytest

from engine.engine_core import EngineCore
from engine.outputs import Failure, FinishReason, ModelRunnerOutput, SchedulerOutput, StepOutput
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from tests.fakes import FakeModelRunner, expected_tokens, make_config

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)


class BrokenRunner:
    def __init__(self) -> None:
        self.is_broken = True
        self.runner = FakeModelRunner(make_config())

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if self.is_broken:
            raise RuntimeError("broken")
        return self.runner.execute(plan)


def make_core() -> tuple[EngineCore, Scheduler]:
    scheduler = Scheduler(make_config())
    return EngineCore(scheduler, FakeModelRunner(make_config())), scheduler


def request(request_id: int = 0, length: int = 5, n: int = 1) -> Request:
    params = SamplingParams(max_tokens=4, ignore_eos=True, n=n)
    return Request(request_id, list(range(3, 3 + length)), params, time.monotonic())


def run(core: EngineCore) -> list[StepOutput]:
    outputs: list[StepOutput] = []
    while core.has_work:
        outputs += core.step()
    return outputs


def test_steps_until_nothing_is_left() -> None:
    core, _ = make_core()
    core.add_request(request())
    outputs = run(core)
    tokens = [output.sampled.token_id for output in outputs if output.sampled]
    assert tokens == expected_tokens(range(3, 8), PARAMS, 0, make_config())
    assert [output.end.reason for output in outputs if output.end] == [FinishReason.LENGTH]
    assert core.stats().blocks.private == 0
    assert core.requests() == ()


def test_step_without_work_does_nothing() -> None:
    core, _ = make_core()
    assert core.step() == []
    assert core.stats().num_steps == 0


def test_abort_and_finish_return_the_ends() -> None:
    core, _ = make_core()
    core.add_request(request(n=2))
    core.step()
    assert {info.owners for info in core.block_map() if info.ref_count} == {(0,)}
    (ended,) = core.finish(1, FinishReason.STOP, 0)
    assert (ended.index, ended.end and ended.end.reason) == (1, FinishReason.STOP)
    (ended,) = core.abort(0)
    assert (ended.index, ended.end and ended.end.reason) == (0, FinishReason.ABORT)
    assert not core.has_work


def test_integrity_is_checked_when_the_engine_goes_idle() -> None:
    core, scheduler = make_core()
    core.add_request(request())
    scheduler.kv.pool.allocate()
    with pytest.raises(AssertionError, match="owners counted"):
        run(core)


def test_integrity_is_checked_when_an_abort_makes_it_idle() -> None:
    core, scheduler = make_core()
    core.add_request(request())
    scheduler.kv.pool.allocate()
    with pytest.raises(AssertionError, match="owners counted"):
        core.abort(0)


def test_engine_goes_on_after_a_failed_step() -> None:
    runner = BrokenRunner()
    core = EngineCore(Scheduler(make_config()), runner)
    core.add_request(request(n=2))
    with pytest.raises(RuntimeError, match="broken"):
        core.step()
    ends = [output.end for output in core.fail_step("broken")]
    assert [end and end.error for end in ends] == [Failure("broken")] * 2
    assert not core.has_work
    runner.is_broken = False
    core.add_request(request(1))
    assert len([output for output in run(core) if output.sampled]) == 4


def test_engine_that_cannot_go_on_ends_everything() -> None:
    core = EngineCore(Scheduler(make_config()), BrokenRunner())
    for request_id in range(3):
        core.add_request(request(request_id, length=20))
    with pytest.raises(RuntimeError):
        core.step()
    ended = core.fail_all("dead")
    assert [(output.request_id, output.end and output.end.error) for output in ended] == [
        (i, Failure("dead")) for i in range(3)
    ]
    assert not core.has_work
