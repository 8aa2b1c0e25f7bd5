"""The whole engine around a fake model: streams, aborts in every state, failures, shutdown."""

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engine.async_engine import AsyncEngine, LoadedModel
from engine.chat_template import DEFAULT_OPTIONS, TemplateOptions
from engine.config import EngineConfig, SchedulerConfig
from engine.errors import (
    EngineDeadError,
    EngineNotReadyError,
    ModelLoadError,
    OverloadedError,
    RequestError,
)
from engine.grammar_spec import GrammarKind, GrammarSpec
from engine.outputs import (
    CandidateFinished,
    EngineEvent,
    FinishReason,
    ModelRunnerOutput,
    PrefillProgress,
    RequestFinished,
    SampleRequest,
    SchedulerOutput,
    TextDelta,
)
from engine.request_stream import RequestStream
from engine.sampling_params import SamplingParams
from engine.stats import BlockState, FinishedCandidate
from engine.worker import Progress
from tests.fake_engine import FakeEngine, FakeStream
from tests.fakes import (
    EOS_TOKEN_ID,
    VOCAB_SIZE,
    FakeModelRunner,
    Script,
    expected_tokens,
    make_config,
    pseudo_random_token,
)

CONFIG = EngineConfig(model_path=Path("nowhere"), model_name="fake")
FOREVER = SamplingParams(ignore_eos=True, max_tokens=500)


class Letters:
    """Token i is the letter U+0100 + i; remembers in which threads it worked."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def token_bytes(self, token_id: int) -> bytes:
        return chr(0x100 + token_id).encode()

    def visible_bytes(self, token_id: int) -> bytes:
        self.threads.add(threading.current_thread().name)
        return b"" if token_id == EOS_TOKEN_ID else self.token_bytes(token_id)

    knows_tools = True

    def render_chat(
        self, messages: Sequence[Mapping[str, object]], options: TemplateOptions = DEFAULT_OPTIONS
    ) -> list[int]:
        self.threads.add(threading.current_thread().name)
        return [len(messages), int(options.add_generation_prompt)]

    def encode(self, text: str) -> list[int]:
        self.threads.add(threading.current_thread().name)
        return [ord(char) - 0x100 for char in text]

    def encode_answer(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        self.threads.add(threading.current_thread().name)
        return "".join(chr(0x100 + i) for i in token_ids)


class GatedRunner(FakeModelRunner):
    """Runs freely, or waits inside the step that the test named. `fault` may raise in a step."""

    def __init__(self, config: SchedulerConfig, script: Script) -> None:
        super().__init__(config, script)
        self.fault: Callable[[SchedulerOutput], None] = lambda plan: None
        self._changed = threading.Condition()
        self._num_entered, self._held_step = 0, 0

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        with self._changed:
            self._num_entered += 1
            self._changed.notify_all()
            is_free = self._changed.wait_for(lambda: self._num_entered != self._held_step, 20)
            assert is_free, "the gate stayed shut"
        self.fault(plan)
        return super().execute(plan)

    def hold(self) -> None:
        """The first step, or the one after the held one, will wait."""
        with self._changed:
            self._held_step += 1
            self._changed.notify_all()

    async def held(self) -> None:
        """Return when the step waits: what was before it is done and told."""
        await asyncio.to_thread(self._wait_until_held)

    async def advance(self) -> None:
        """Let one step happen; the next one waits."""
        self.hold()
        await self.held()

    def release(self) -> None:
        """Run freely from here on."""
        with self._changed:
            self._held_step = 0
            self._changed.notify_all()

    def _wait_until_held(self) -> None:
        with self._changed:
            is_held = self._changed.wait_for(lambda: self._num_entered == self._held_step, 20)
            assert is_held, "no step came"


@dataclass
class Rig:
    engine: AsyncEngine
    runner: GatedRunner
    letters: Letters

    def live_blocks(self) -> int:
        blocks = self.engine.stats.blocks
        return blocks.private + blocks.shared

    async def settled_blocks(self) -> int:
        """Live blocks after everything that was commanded before has been done."""
        blocks = await self.engine.block_map()
        return sum(b.state in (BlockState.PRIVATE, BlockState.SHARED) for b in blocks)

    def submit(self, prompt: Sequence[int], params: SamplingParams = FOREVER) -> RequestStream:
        return self.engine.submit(prompt, params)


@asynccontextmanager
async def running(
    script: Script = pseudo_random_token, *, config: EngineConfig = CONFIG, **changes: Any
) -> AsyncIterator[Rig]:
    runner, letters = GatedRunner(make_config(**changes), script), Letters()
    engine = AsyncEngine(config, load=lambda config, progress: LoadedModel(runner, letters))
    engine.start()
    await engine.wait_ready()
    try:
        yield Rig(engine, runner, letters)
    finally:
        runner.release()
        await engine.shutdown()


def spelled(*words: str) -> Script:
    """A script in which candidate by seed (0, 1, ...) says its word, a letter a token, then EOS."""

    def script(request: SampleRequest, context: Sequence[int]) -> int:
        word, position = words[request.seed or 0], len(request.output_token_ids)
        return ord(word[position]) if position < len(word) else EOS_TOKEN_ID

    return script


def letters(word: str) -> str:
    """What `spelled` looks like through `Letters`."""
    return "".join(chr(0x100 + ord(char)) for char in word)


async def read(stream: RequestStream) -> list[EngineEvent]:
    return [event async for event in stream]


def text_of(events: Sequence[EngineEvent], index: int = 0) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta) and e.index == index)


def ids_of(events: Sequence[EngineEvent], index: int = 0) -> list[int]:
    deltas = (e for e in events if isinstance(e, TextDelta) and e.index == index)
    return [token_id for delta in deltas for token_id in delta.token_ids]


def ends_of(events: Sequence[EngineEvent]) -> dict[int, CandidateFinished]:
    ends = [e for e in events if isinstance(e, CandidateFinished)]
    assert len({e.index for e in ends}) == len(ends), "a candidate ended twice"
    assert isinstance(events[-1], RequestFinished)
    assert sum(isinstance(e, RequestFinished) for e in events) == 1
    return {e.index: e for e in ends}


# --- grammars --------------------------------------------------------------------------------------


def grammar(regex: str) -> SamplingParams:
    return SamplingParams(grammar=GrammarSpec(GrammarKind.REGEX, regex, "guided_regex"))


async def test_a_grammar_is_compiled_off_the_loop_and_each_candidate_follows_it_for_itself() -> (
    None
):
    seen: list[SampleRequest] = []

    def script(request: SampleRequest, context: Sequence[int]) -> int:
        seen.append(request)
        assert request.matcher is not None
        mask = int.from_bytes(request.matcher.allowed(request.output_token_ids), "little")
        legal = [token_id for token_id in range(VOCAB_SIZE) if mask >> token_id & 1]
        return legal[(request.seed or 0) % len(legal)]

    params = replace(grammar("\u0105(\u0110|\u0145|\u0190)"), n=3, seed=0)
    async with running(script) as rig:
        await rig.engine.prepare(params)
        assert not any(name.startswith("MainThread") for name in rig.letters.threads)
        events = await read(rig.submit([5, 6, 7], params))
    ends = ends_of(events)
    assert [text_of(events, i) for i in range(3)] == [
        "\u0105\u0110",
        "\u0105\u0145",
        "\u0105\u0190",
    ]
    assert {end.finish_reason for end in ends.values()} == {"stop"}
    assert [ends[i].usage.completion_tokens for i in range(3)] == [3, 3, 3]
    assert len({id(request.matcher) for request in seen}) == 3


async def test_a_grammar_that_cannot_be_compiled_is_refused_before_anything_is_held() -> None:
    async with running() as rig:
        with pytest.raises(RequestError, match="unclosed group") as caught:
            await rig.engine.prepare(grammar("a("))
        assert caught.value.param == "guided_regex"
        with pytest.raises(RequestError, match="unclosed group"):
            rig.engine.check_request([5], grammar("a("))
        with pytest.raises(RequestError, match="unclosed group"):
            rig.submit([5], grammar("a("))
        assert await rig.settled_blocks() == 0
        assert await rig.engine.requests() == ()


# --- answers ---------------------------------------------------------------------------------------


async def test_sixteen_at_once_equal_each_alone() -> None:
    async with running(num_blocks=60, max_num_seqs=16, max_num_batched_tokens=24) as rig:
        prompts = [list(range(i, 3 * i + 5)) for i in range(16)]
        params = [SamplingParams(max_tokens=20 + i, seed=i) for i in range(16)]
        streams = [rig.submit(p, s) for p, s in zip(prompts, params, strict=True)]
        events = await asyncio.gather(*map(read, streams))
        for prompt, asked, got in zip(prompts, params, events, strict=True):
            expected = expected_tokens(prompt, asked, 0, rig.runner.scheduler_config)
            shown = [t for t in expected if t != EOS_TOKEN_ID]
            assert ids_of(got) == shown
            assert text_of(got) == "".join(chr(0x100 + t) for t in shown)
            assert ends_of(got)[0].usage.completion_tokens == len(expected)
        assert rig.live_blocks() == 0


async def test_events_come_in_order() -> None:
    async with running(spelled("abc"), max_num_batched_tokens=8) as rig:
        events = []
        async for event in rig.submit(list(range(10)), SamplingParams()):
            events.append(event)
        progress = [e for e in events if isinstance(e, PrefillProgress)]
        assert progress[-1] == PrefillProgress(10, 10)
        assert events[: len(progress)] == progress
        assert text_of(events) == letters("abc")
        assert isinstance(events[-2], CandidateFinished)
        assert ends_of(events)[0].finish_reason is FinishReason.STOP
        assert ends_of(events)[0].usage.completion_tokens == 4


async def test_candidates_differ_end_apart_and_repeat() -> None:
    async with running(spelled("ab", "abcdef", "x")) as rig:
        for _ in range(2):
            events = await read(rig.submit([1, 2, 3], SamplingParams(n=3, seed=0)))
            assert [text_of(events, i) for i in range(3)] == list(
                map(letters, ["ab", "abcdef", "x"])
            )
            assert {e.finish_reason for e in ends_of(events).values()} == {FinishReason.STOP}
        assert rig.live_blocks() == 0


async def test_a_stop_string_ends_one_candidate_and_frees_its_blocks() -> None:
    async with running(spelled("abcdefgh", "abzzzzzzz")) as rig:
        stop = (letters("def"), letters("zzzz"))
        events = await read(rig.submit([1, 2, 3], SamplingParams(n=2, seed=0, stop=stop)))
        assert [text_of(events, i) for i in range(2)] == [letters("abc"), letters("ab")]
        ends = ends_of(events)
        assert [ends[i].stop_reason for i in range(2)] == list(stop)
        assert [ends[i].usage.completion_tokens for i in range(2)] == [6, 6]
        assert {e.finish_reason for e in ends.values()} == {FinishReason.STOP}
        assert rig.live_blocks() == 0


async def test_an_unread_stream_stays_small_and_loses_nothing() -> None:
    async with running(max_num_batched_tokens=8) as rig:
        params = SamplingParams(n=2, seed=3, ignore_eos=True, max_tokens=12, logprobs=1)
        stream = rig.submit(list(range(9)), params)
        while rig.engine.stats.counters.generated_tokens < 24:
            await rig.engine.requests()
        await rig.engine.requests()
        events = await read(stream)
        assert [type(e) for e in events].count(TextDelta) == 2
        assert len(events) == 6
        for index in range(2):
            expected = expected_tokens(range(9), params, index, rig.runner.scheduler_config)
            assert ids_of(events, index) == expected
        assert all(len(e.logprobs) == 12 for e in events if isinstance(e, TextDelta))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_zero_tokens_is_an_answer_without_text() -> None:
    async with running() as rig:
        events = await read(rig.submit([1, 2], SamplingParams(max_tokens=0)))
        assert text_of(events) == ""
        assert ends_of(events)[0].finish_reason is FinishReason.LENGTH
        assert ends_of(events)[0].usage.completion_tokens == 0


# --- abort -----------------------------------------------------------------------------------------


def assert_aborted(events: Sequence[EngineEvent], count: int = 1) -> None:
    ends = ends_of(events)
    assert len(ends) == count
    assert {e.finish_reason for e in ends.values()} == {FinishReason.ABORT}


async def test_abort_before_the_first_iteration() -> None:
    async with running() as rig:
        rig.runner.hold()
        stream = rig.submit([1, 2, 3])
        stream.abort()
        rig.runner.release()
        assert_aborted(await read(stream))
        assert await rig.settled_blocks() == 0


async def test_abort_in_the_queue_leaves_the_running_alone() -> None:
    async with running(num_blocks=4, max_num_seqs=8) as rig:
        rig.runner.hold()
        runs = rig.submit(list(range(12)), SamplingParams(max_tokens=4, ignore_eos=True))
        waits = rig.submit(list(range(20, 30)))
        await rig.runner.held()
        await rig.runner.advance()
        assert rig.engine.stats.num_waiting == 1
        waits.abort()
        rig.runner.release()
        assert_aborted(await read(waits))
        assert ends_of(await read(runs))[0].finish_reason is FinishReason.LENGTH
        assert rig.live_blocks() == 0


async def test_abort_in_the_middle_of_a_prefill() -> None:
    async with running(num_blocks=30, max_num_batched_tokens=8) as rig:
        rig.runner.hold()
        stream = rig.submit(list(range(100)), SamplingParams(n=3, max_tokens=5))
        await rig.runner.held()
        await rig.runner.advance()
        assert await anext(stream) == PrefillProgress(8, 100)
        assert rig.live_blocks() > 0
        stream.abort()
        rig.runner.release()
        assert_aborted(await read(stream), 3)
        assert rig.live_blocks() == 0
        assert rig.engine.stats.counters.generated_tokens == 0


async def test_abort_while_decoding_frees_within_a_step() -> None:
    async with running(num_blocks=200) as rig:
        rig.runner.hold()
        stream = rig.submit([1, 2, 3])
        await rig.runner.held()
        for _ in range(5):
            await rig.runner.advance()
        assert rig.live_blocks() > 0
        stream.abort()
        rig.runner.release()
        assert_aborted(await read(stream))
        assert rig.live_blocks() == 0
        assert len(rig.runner.plans) == 6


async def test_abort_one_of_three_forked_candidates() -> None:
    async with running(num_blocks=100) as rig:
        params = SamplingParams(n=3, max_tokens=30, ignore_eos=True, seed=1)
        rig.runner.hold()
        stream = rig.submit([1, 2, 3], params)
        await rig.runner.held()
        for _ in range(3):
            await rig.runner.advance()
        stream.abort(1)
        rig.runner.release()
        events = await read(stream)
        assert len(ids_of(events, 1)) == 4
        ends = ends_of(events)
        assert [ends[i].finish_reason for i in range(3)] == ["length", "abort", "length"]
        for index in (0, 2):
            expected = expected_tokens([1, 2, 3], params, index, rig.runner.scheduler_config)
            assert ids_of(events, index) == expected
        assert rig.live_blocks() == 0


async def test_abort_of_a_preempted_sequence() -> None:
    async with running(num_blocks=6, max_num_seqs=4) as rig:
        rig.runner.hold()
        params = SamplingParams(max_tokens=14, ignore_eos=True)
        streams = [rig.submit([i] * 6, params) for i in range(3)]
        await rig.runner.held()
        while rig.engine.stats.counters.preemptions == 0:
            await rig.runner.advance()
        assert rig.engine.stats.num_waiting == 1
        streams[2].abort()
        rig.runner.release()
        assert_aborted(await read(streams[2]))
        for stream in streams[:2]:
            assert ends_of(await read(stream))[0].usage.completion_tokens == 14
        assert rig.live_blocks() == 0


async def test_abort_after_the_end_and_twice_is_nothing() -> None:
    async with running(spelled("a")) as rig:
        stream = rig.submit([1], SamplingParams())
        events = await read(stream)
        stream.abort()
        stream.abort(5)
        await stream.aclose()
        assert ends_of(events)[0].finish_reason is FinishReason.STOP
        assert text_of(await read(rig.submit([1], SamplingParams()))) == letters("a")


async def test_aclose_returns_when_the_blocks_are_free() -> None:
    async with running(num_blocks=200) as rig:
        rig.runner.hold()
        stream = rig.submit([1, 2, 3])
        await rig.runner.held()
        await rig.runner.advance()
        assert rig.live_blocks() == 1
        asyncio.get_running_loop().call_soon(rig.runner.release)
        await stream.aclose()
        assert rig.live_blocks() == 0
        assert_aborted(await read(stream))


async def test_leaving_the_context_aborts_also_on_an_exception() -> None:
    async with running(num_blocks=200) as rig:

        async def fail_while_reading() -> None:
            async with rig.submit([1, 2, 3]):
                await rig.runner.held()
                asyncio.get_running_loop().call_soon(rig.runner.release)
                raise KeyError

        rig.runner.hold()

        with pytest.raises(KeyError):
            await fail_while_reading()
        assert rig.live_blocks() == 0


async def test_a_dropped_stream_aborts() -> None:
    async with running(num_blocks=200) as rig:
        rig.runner.hold()
        stream = rig.submit([1, 2, 3])
        await rig.runner.held()
        del stream
        gc.collect()
        rig.runner.release()
        assert await rig.settled_blocks() == 0
        assert await rig.engine.requests() == ()


async def test_a_stream_that_is_awaited_is_not_dropped() -> None:
    async with running(spelled("abc")) as rig:
        texts: list[str] = []

        async def consume() -> None:
            texts.append(text_of(await read(rig.submit([1, 2], SamplingParams()))))

        rig.runner.hold()
        consumer = consume()
        task = asyncio.create_task(consumer)
        await rig.runner.held()
        del task, consumer
        gc.collect()
        rig.runner.release()
        while not texts:
            await rig.engine.requests()
        assert texts == [letters("abc")]


async def test_a_cancelled_reader_can_come_back() -> None:
    async with running(spelled("abc")) as rig:
        rig.runner.hold()
        stream = rig.submit([1, 2], SamplingParams())
        task = asyncio.create_task(read(stream))
        await rig.runner.held()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rig.runner.release()
        assert text_of(await read(stream)) == letters("abc")


# --- refusal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], SamplingParams(), "prompt"),
        ([1] * 40, SamplingParams(), "prompt"),
        ([VOCAB_SIZE], SamplingParams(), "prompt"),
        ([3, -1], SamplingParams(), "prompt"),
        ([1], SamplingParams(n=9), "n"),
        ([1], SamplingParams(logit_bias={VOCAB_SIZE: 1.0}), f"logit_bias.{VOCAB_SIZE}"),
        ([1], SamplingParams(stop_token_ids=(VOCAB_SIZE,)), "stop_token_ids[0]"),
    ],
)
async def test_what_can_never_run_is_refused_and_holds_nothing(
    prompt: list[int], params: SamplingParams, param: str
) -> None:
    async with running() as rig:
        for refuse in (rig.engine.check_request, rig.engine.submit):
            with pytest.raises(RequestError) as caught:
                refuse(prompt, params)
            assert caught.value.param == param
        assert await rig.engine.requests() == ()
        assert rig.engine.stats.counters.requests == 0


# --- failures --------------------------------------------------------------------------------------


async def test_a_failed_step_ends_those_in_it_and_the_engine_goes_on() -> None:
    async with running() as rig:

        def fail_once(plan: SchedulerOutput) -> None:
            rig.runner.fault = lambda plan: None
            raise RuntimeError("out of memory")

        rig.runner.fault = fail_once
        events = await read(rig.submit([1, 2], SamplingParams(n=2)))
        for end in ends_of(events).values():
            assert end.finish_reason is FinishReason.ERROR
            assert "out of memory" in (end.error or "")
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
            assert str(error) in (end.error or "")
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


# --- life ------------------------------------------------------------------------------------------


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


async def test_requests_and_blocks_are_shown_between_steps() -> None:
    async with running(num_blocks=4) as rig:
        rig.runner.hold()
        first, second = rig.submit(list(range(8))), rig.submit(list(range(20, 32)))
        await rig.runner.held()
        await rig.runner.advance()
        question = asyncio.gather(rig.engine.requests(), rig.engine.block_map())
        await asyncio.sleep(0)
        rig.runner.release()
        requests, blocks = await question
        assert [(r.request_id, r.state, r.waiting_reason) for r in requests] == [
            (first.request_id, "running", None),
            (second.request_id, "waiting", "capacity"),
        ]
        assert [b.block_id for b in blocks] == [0, 1, 2, 3]
        assert {b.owners for b in blocks if b.ref_count} == {(first.request_id,)}
        await first.aclose()
        await second.aclose()


async def test_listeners_hear_of_every_candidate_in_the_loop() -> None:
    async with running(spelled("a", "b")) as rig:
        heard: list[tuple[str, FinishedCandidate]] = []

        def fail(candidate: FinishedCandidate) -> None:
            raise ValueError("a bad listener")

        rig.engine.add_finished_listener(fail)
        rig.engine.add_finished_listener(
            lambda c: heard.append((threading.current_thread().name, c))
        )
        stream = rig.submit([1, 2], SamplingParams(n=2, seed=0))
        await read(stream)
        assert {name for name, _ in heard} == {threading.current_thread().name}
        assert [(c.request_id, c.index) for _, c in heard] == [
            (stream.request_id, 0),
            (stream.request_id, 1),
        ]


async def test_text_is_made_off_the_loop() -> None:
    async with running(spelled("a")) as rig:
        assert await rig.engine.render_chat([{}, {}]) == [2, 1]
        assert await rig.engine.render_chat([{}], TemplateOptions(add_generation_prompt=False)) == [
            1,
            0,
        ]
        assert await rig.engine.encode("ĀĂ") == [0, 2]
        assert await rig.engine.encode_answer("ĀĂ") == [0, 2]
        assert await rig.engine.decode([0, 2]) == "ĀĂ"
        texts = await rig.engine.token_texts([0, EOS_TOKEN_ID, 3])
        assert [each.text for each in texts] == ["Ā", "", "ă"]
        await read(rig.submit([1], SamplingParams()))
        assert rig.letters.threads
        assert all(name.startswith(("tokenizer", "engine")) for name in rig.letters.threads)


async def test_a_burst_fills_the_waiting_room_and_no_more() -> None:
    config = replace(CONFIG, max_waiting=3)
    async with running(config=config, max_num_seqs=1) as rig:
        rig.runner.hold()
        first = rig.submit([1])
        await rig.runner.advance()
        await asyncio.wait_for(anext(first), 10)
        streams = [rig.submit([1]) for _ in range(2)]
        give_back = rig.engine.keep_place()
        for refused in (
            rig.engine.keep_place,
            lambda: rig.submit([1]),
            lambda: rig.engine.embed([1]),
        ):
            with pytest.raises(OverloadedError, match="3 requests are waiting"):
                refused()
        give_back()
        streams.append(rig.submit([1]))
        with pytest.raises(OverloadedError):
            rig.submit([1])
        rig.runner.release()
        await streams[0].aclose()
        streams.append(rig.submit([1]))
        for stream in (first, *streams):
            await stream.aclose()
        assert await rig.settled_blocks() == 0
        await read(rig.submit([1], SamplingParams(max_tokens=1)))


async def test_ids_are_the_engines_own() -> None:
    async with running() as rig:
        ids = [rig.submit([1]).request_id for _ in range(3)]
        assert len(set(ids)) == 3


def surface(kind: type) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, member in inspect.getmembers(kind):
        if name in ("__aiter__", "__aenter__", "__aexit__") or not name.startswith("_"):
            is_function = inspect.isfunction(member)
            found[name] = (
                list(inspect.signature(member).parameters.values()) if is_function else None
            )
    return found


def plain(parameters: object) -> object:
    """Names, kinds and defaults."""
    if not isinstance(parameters, list):
        return parameters
    return [(p.name, p.kind, p.default) for p in parameters]


def test_the_fake_engine_has_the_same_surface() -> None:
    real, fake = surface(AsyncEngine), surface(FakeEngine)
    assert set(real) - {"status"} == set(fake)
    assert all(plain(real[name]) == plain(fake[name]) for name in fake)
    stream = surface(RequestStream)
    assert all(plain(stream[name]) == plain(p) for name, p in surface(FakeStream).items())
    coroutines = ("block_map", "requests", "render_chat", "encode", "decode", "wait_ready")
    for name in (*coroutines, "encode_answer", "token_texts"):
        assert inspect.iscoroutinefunction(getattr(AsyncEngine, name))
