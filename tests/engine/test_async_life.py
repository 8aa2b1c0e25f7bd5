"""The engine's own life: loading, failures, shutdown."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from engine import async_engine
from engine.async_engine import AsyncEngine, LoadedModel
from engine.config import EngineConfig
from engine.errors import (
    EngineDeadError,
    EngineNotReadyError,
    ModelLoadError,
)
from engine.outputs import (
    FinishReason,
    SchedulerOutput,
)
from engine.sampling_params import SamplingParams
from engine.worker import Progress
from tests.engine.rig import CONFIG, Letters, assert_aborted, ends_of, read, running, spelled
from tests.fakes import (
    FakeModelRunner,
    make_config,
)


async def test_a_failed_step_ends_those_in_it_and_the_engine_goes_on() -> None:
    async with running() as rig:

        def fail_once(plan: SchedulerOutput) -> None:
            rig.runner.fault = lambda plan: None
            raise RuntimeError("out of memory")

        rig.runner.fault = fail_once
        events = await read(rig.submit([1, 2], SamplingParams(n=2)))
        for end in ends_of(events).values():
            assert end.finish_reason is FinishReason.ERROR
            assert end.error is not None
            assert "out of memory" in end.error.message
        assert rig.live_blocks() == 0
        assert rig.engine.status.state == "ready"
        after = await read(rig.submit([1, 2], SamplingParams(max_tokens=3)))
        assert ends_of(after)[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("error", [RuntimeError("broken device"), AssertionError("our bug")])
async def test_an_engine_that_cannot_go_on_dies_and_tells_everybody(error: Exception) -> None:
    async with running(num_blocks=4) as rig:

        def fail(plan: SchedulerOutput) -> None:
            raise error

        rig.runner.fault = fail
        streams = [rig.submit(list(range(i, i + 12))) for i in range(8)]
        for events in await asyncio.gather(*map(read, streams)):
            (end,) = ends_of(events).values()
            assert end.finish_reason is FinishReason.ERROR
            assert end.error is not None
            assert str(error) in end.error.message
            assert end.usage.prompt_tokens == 12
        with pytest.raises(EngineDeadError, match=str(error)):
            await rig.engine.block_map()
        assert rig.engine.status.state == "dead"
        assert str(error) in (rig.engine.status.error or "")
        with pytest.raises(EngineDeadError):
            rig.submit([1])
        with pytest.raises(EngineDeadError):
            await rig.engine.render_chat([])
        assert rig.engine.info.model_name == "fake"


async def test_a_question_that_comes_too_late_is_answered_with_the_death() -> None:
    async with running() as rig:

        def fail(plan: SchedulerOutput) -> None:
            raise AssertionError("our bug")

        rig.runner.fault = fail
        rig.runner.hold()
        stream = rig.submit([1, 2])
        await rig.runner.held()
        question = asyncio.create_task(rig.engine.block_map())
        late = rig.submit([3, 4])
        await asyncio.sleep(0)
        rig.runner.release()
        with pytest.raises(EngineDeadError, match="our bug"):
            await question
        for events in (await read(stream), await read(late)):
            assert ends_of(events)[0].finish_reason is FinishReason.ERROR


def loader_that_raises(error: Exception) -> Callable[[EngineConfig, Progress], LoadedModel]:
    def load(config: EngineConfig, progress: Progress) -> LoadedModel:
        raise error

    return load


async def test_a_model_that_does_not_load_is_a_clear_end() -> None:
    engine = AsyncEngine(CONFIG, load=loader_that_raises(ModelLoadError("no such file")))
    engine.start()
    with pytest.raises(ModelLoadError, match="no such file"):
        await engine.wait_ready()
    assert (engine.status.state, engine.status.error) == ("dead", "no such file")
    for ask in (lambda: engine.info, lambda: engine.stats):
        with pytest.raises(ModelLoadError):
            ask()
    with pytest.raises(EngineDeadError, match="no such file"):
        engine.submit([1], SamplingParams())
    await engine.shutdown()


async def test_any_failure_of_loading_becomes_a_load_error() -> None:
    engine = AsyncEngine(CONFIG, load=loader_that_raises(KeyError("weird")))
    engine.start()
    with pytest.raises(ModelLoadError, match="KeyError: 'weird'"):
        await engine.wait_ready()
    await engine.shutdown()


class SlowLoad:
    """Reports one stage, then waits for the test."""

    def __init__(self) -> None:
        self.reported, self.go_on = threading.Event(), threading.Event()
        self.is_complete = False

    def __call__(self, config: EngineConfig, progress: Progress) -> LoadedModel:
        progress("weights", 0.25)
        self.reported.set()
        assert self.go_on.wait(20)
        progress("warming up", 0.9)
        self.is_complete = True
        return LoadedModel(FakeModelRunner(make_config()), Letters())


async def test_while_loading_the_status_follows_and_nothing_can_run() -> None:
    load = SlowLoad()
    engine = AsyncEngine(CONFIG, load=load)
    engine.start()
    await asyncio.to_thread(load.reported.wait, 20)
    status = engine.status
    assert (status.state, status.stage, status.fraction) == ("loading", "weights", 0.25)
    for ask in (
        lambda: engine.info,
        lambda: engine.stats,
        lambda: engine.submit([1], SamplingParams()),
        lambda: engine.check_request([1], SamplingParams()),
    ):
        with pytest.raises(EngineNotReadyError, match="weights"):
            ask()
    for question in (engine.block_map(), engine.requests(), engine.encode("a")):
        with pytest.raises(EngineNotReadyError):
            await question
    load.go_on.set()
    await engine.wait_ready()
    assert engine.status.state == "ready"
    assert engine.stats.blocks.total == 10
    await engine.shutdown()


async def test_shutdown_while_loading_breaks_it_off() -> None:
    load = SlowLoad()
    engine = AsyncEngine(CONFIG, load=load)
    engine.start()
    await asyncio.to_thread(load.reported.wait, 20)
    closing = asyncio.create_task(engine.shutdown())
    await asyncio.sleep(0)
    load.go_on.set()
    await closing
    assert not load.is_complete
    with pytest.raises(EngineDeadError):
        await engine.wait_ready()


async def test_shutdown_does_not_wait_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_engine, "LOADING_TIMEOUT_S", 0.01)
    load = SlowLoad()
    engine = AsyncEngine(CONFIG, load=load)
    engine.start()
    await asyncio.to_thread(load.reported.wait, 20)
    (thread,) = (t for t in threading.enumerate() if t.name == "engine")
    await engine.shutdown()
    assert thread.is_alive()
    assert (engine.status.state, engine.status.error) == ("dead", "the engine was shut down")
    load.go_on.set()
    await asyncio.to_thread(thread.join, 20)
    assert not load.is_complete
    with pytest.raises(EngineDeadError, match="shut down"):
        await engine.wait_ready()


async def test_shutdown_ends_streams_and_the_thread_and_is_idempotent() -> None:
    async with running(num_blocks=4) as rig:
        rig.runner.hold()
        streams = [rig.submit(list(range(i, i + 10))) for i in range(4)]
        await rig.runner.held()
        threads = {t for t in threading.enumerate() if t.name == "engine"}
        closing = asyncio.gather(rig.engine.shutdown(), rig.engine.shutdown())
        asyncio.get_running_loop().call_soon(rig.runner.release)
        await closing
        for stream in streams:
            assert_aborted(await read(stream))
        await rig.engine.shutdown()
        assert not any(thread.is_alive() for thread in threads)
        assert rig.engine.status.state == "dead"
        with pytest.raises(EngineDeadError, match="shut down"):
            rig.submit([1])


async def test_shutdown_without_start() -> None:
    engine = AsyncEngine(CONFIG, load=SlowLoad())
    await engine.shutdown()
    assert engine.status.state == "dead"
    with pytest.raises(EngineDeadError):
        await engine.wait_ready()


async def test_an_idle_engine_sleeps() -> None:
    async with running(spelled("a")) as rig:
        await read(rig.submit([1], SamplingParams()))
        await asyncio.sleep(0.05)
        before = rig.engine.stats
        await asyncio.sleep(0.05)
        assert rig.engine.stats is before
