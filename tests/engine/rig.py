"""A whole engine around a fake model that a test moves step by step, and how to read its streams."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.async_engine import AsyncEngine, LoadedModel
from engine.chat_template import DEFAULT_OPTIONS, TemplateOptions
from engine.config import EngineConfig, SchedulerConfig
from engine.outputs import (
    CandidateFinished,
    EngineEvent,
    FinishReason,
    ModelRunnerOutput,
    RequestFinished,
    SampleRequest,
    SchedulerOutput,
    TextDelta,
)
from engine.request_stream import RequestStream
from engine.sampling_params import SamplingParams
from engine.stats import BlockState
from tests.fakes import (
    EOS_TOKEN_ID,
    FakeModelRunner,
    Script,
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

    longest_token = 64
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


def assert_aborted(events: Sequence[EngineEvent], count: int = 1) -> None:
    ends = ends_of(events)
    assert len(ends) == count
    assert {e.finish_reason for e in ends.values()} == {FinishReason.ABORT}
