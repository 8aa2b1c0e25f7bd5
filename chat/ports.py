"""What this room needs from the engine and from time; the real engine and a test's stand-in both fit."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from engine.chat_template import DEFAULT_OPTIONS, TemplateOptions
from engine.detokenizer import TokenText
from engine.outputs import EngineEvent
from engine.sampling_params import SamplingParams
from engine.stats import EngineStats, ModelInfo


class Stream(Protocol):
    """The events of one request up to and including `RequestFinished`. `request_id` is the engine's own."""

    @property
    def request_id(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[EngineEvent]: ...

    def abort(self, index: int | None = None) -> None: ...

    async def aclose(self) -> None: ...


class Engine(Protocol):
    """The part of `engine.async_engine.AsyncEngine` that chats use."""

    @property
    def stats(self) -> EngineStats: ...

    @property
    def info(self) -> ModelInfo: ...

    @property
    def most_characters(self) -> int: ...

    async def decode(self, token_ids: Sequence[int]) -> str: ...

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], options: TemplateOptions = DEFAULT_OPTIONS
    ) -> list[int]: ...

    async def encode_answer(self, text: str) -> list[int]: ...

    async def token_texts(self, token_ids: Sequence[int]) -> list[TokenText]: ...

    async def prepare(self, params: SamplingParams) -> None: ...

    def check_request(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None: ...

    async def count_resident(self, token_ids: Sequence[int]) -> int: ...

    def keep_place(self) -> Callable[[], None]: ...

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> Stream: ...


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time, so that tests need not wait for it."""

    def time(self) -> float:
        """Seconds since the epoch."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call back in the event loop after `delay` seconds."""
        ...


class SystemClock:
    """The clock on the wall and the running event loop's timers."""

    def time(self) -> float:
        return time.time()

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)
