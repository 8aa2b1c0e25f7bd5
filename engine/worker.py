"""The engine's one thread. It alone owns scheduler, model and text state.

Commands come through an inbox that is emptied between two steps; with nothing to do the thread sleeps on it. What others
may know leaves as `Message`s through `post`: one `Batch` of events per round at most. `status` and `stats` are immutable
values, written by this thread and read by any.

When a step raises, the sequences in it end with reason error and the others go on. After MAX_FAILED_STEPS in a row, or
when an assertion says that our own state is wrong, everything ends and the thread with it.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from engine.chat_template import DEFAULT_OPTIONS, TemplateOptions
from engine.config import SchedulerConfig
from engine.engine_core import EngineCore, Executor
from engine.errors import EngineDeadError, EngineError, ModelLoadError, RequestError
from engine.output_processor import OutputProcessor, ProcessedOutputs, TokenBytes
from engine.outputs import FinishReason, StepOutput
from engine.scheduler import Scheduler
from engine.sequence import Request
from engine.stats import EngineStats, EngineStatus, ModelInfo

MAX_FAILED_STEPS = 3
SHUT_DOWN = "the engine was shut down"

logger = logging.getLogger(__name__)


class Runner(Executor, Protocol):
    """A model runner: `engine.model_runner.ModelRunner`, or a test's."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def scheduler_config(self) -> SchedulerConfig: ...


class Codec(TokenBytes, Protocol):
    """A tokenizer: `engine.tokenizer.Tokenizer`, or a test's."""

    @property
    def longest_token(self) -> int: ...

    @property
    def knows_tools(self) -> bool: ...

    def render_chat(
        self, messages: Sequence[Mapping[str, object]], options: TemplateOptions = DEFAULT_OPTIONS
    ) -> list[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_answer(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What loading yields."""

    runner: Runner
    tokenizer: Codec


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded."""

    model: LoadedModel


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one round."""

    outputs: ProcessedOutputs


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that could not be queued after all."""

    request_id: int
    error: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What `ask` asked, with the asker's own key."""

    key: object
    value: Any


@dataclass(frozen=True, slots=True)
class Ended:
    """The last message: no event comes any more."""

    error: EngineError


Message = Ready | Batch | Refused | Answer | Ended
Progress = Callable[[str, float | None], None]


class _Stopped(Exception):
    """Breaks off loading."""


class Worker:
    """`load` runs in the thread, gets a progress callback and may raise; `post` must not block."""

    def __init__(
        self, load: Callable[[Progress], LoadedModel], post: Callable[[Message], None]
    ) -> None:
        self.status = EngineStatus("loading", "starting")
        self.stats: EngineStats | None = None
        self._load = load
        self._post = post
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._is_stopping = False
        self._batch = ProcessedOutputs()
        self._num_failed_steps = 0

    # --- any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin loading."""
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self._inbox.put(partial(self._add, request))

    def abort(self, request_id: int, index: int | None) -> None:
        """End one candidate, or all that still live. Safe in a finalizer."""
        self._inbox.put(partial(self._abort, request_id, index))

    def ask(self, key: object, question: Callable[[EngineCore], object]) -> None:
        """Answer a question about the engine as it is between two steps."""
        self._inbox.put(lambda: self._post(Answer(key, question(self._core))))

    def stop(self) -> None:
        """Abort everything and end; while loading, at the next report of progress."""
        self._is_stopping = True
        self._inbox.put(lambda: None)

    def join(self) -> None:
        """Wait for the thread's end, which follows `Ended` at once."""
        self._thread.join()

    # --- this thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        self._post(Ended(self._open() or self._serve()))

    def _open(self) -> EngineError | None:
        """Load the model; returns why that failed."""
        try:
            model = self._load(self._report)
            self._core = EngineCore(Scheduler(model.runner.scheduler_config), model.runner)
            self._processor = OutputProcessor(model.tokenizer)
        except _Stopped:
            return EngineDeadError(SHUT_DOWN)
        except EngineError as error:
            return error
        except Exception as error:
            logger.exception("loading the model failed")
            return ModelLoadError(f"loading the model failed: {_describe(error)}")
        self.stats = self._core.stats()
        self.status = EngineStatus("ready", "ready", 1.0)
        self._post(Ready(model))
        return None

    def _report(self, stage: str, fraction: float | None) -> None:
        if self._is_stopping:
            raise _Stopped
        self.status = EngineStatus("loading", stage, fraction)

    def _serve(self) -> EngineError:
        """Rounds until stopped or broken; returns which."""
        try:
            while not self._is_stopping:
                self._empty_inbox()
                if self._core.has_work and not self._is_stopping:
                    self._step()
                self._publish()
            error = SHUT_DOWN
            for request in self._core.requests():
                self._abort(request.request_id, None)
        except Exception as broken:
            logger.exception("the engine cannot go on")
            error = f"the engine failed: {_describe(broken)}"
            self._fail_all(error)
        self._publish()
        return EngineDeadError(error)

    def _empty_inbox(self) -> None:
        if not self._core.has_work:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def _step(self) -> None:
        try:
            outputs = self._core.step()
            self._num_failed_steps = 0
        except AssertionError:
            raise
        except Exception as error:
            self._num_failed_steps += 1
            if self._num_failed_steps >= MAX_FAILED_STEPS:
                raise
            logger.exception("a step failed; the sequences in it end")
            outputs = self._core.fail_step(f"a step of the engine failed: {_describe(error)}")
        self._take(outputs)

    def _take(self, outputs: list[StepOutput]) -> None:
        """Turn outputs into events, and end what a stop string ended."""
        processed = self._processor.process(outputs)
        self._batch.extend(processed)
        for seq_id, num_unused in processed.stopped.items():
            self._take(self._core.finish(seq_id, FinishReason.STOP, num_unused))

    def _publish(self) -> None:
        self.stats = self._core.stats()
        if self._batch:
            self._post(Batch(self._batch))
            self._batch = ProcessedOutputs()

    def _add(self, request: Request) -> None:
        try:
            self._core.add_request(request)
        except RequestError as error:
            self._post(Refused(request.request_id, error.message))
        else:
            self._processor.add_request(request)

    def _abort(self, request_id: int, index: int | None) -> None:
        self._take(self._core.abort(request_id, index))

    def _fail_all(self, error: str) -> None:
        try:
            self._take(self._core.fail_all(error))
        except Exception:
            logger.exception("ending the requests one by one failed, too")


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
