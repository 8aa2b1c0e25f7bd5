"""The engine for the event loop: load, submit, stream, abort, look inside, shut down.

The loop never waits for arithmetic, which is the worker thread's, nor for tokenising, which is a small pool's. All methods
belong to one event loop, the one that called `start`; only what a stream's end of life triggers may come from elsewhere.
"""

import asyncio
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, assert_never

from engine.admission import check_params, check_request
from engine.chat_template import DEFAULT_OPTIONS, TemplateOptions
from engine.config import EngineConfig
from engine.detokenizer import TokenText, token_texts
from engine.engine_core import EngineCore
from engine.errors import EngineDeadError, EngineError, EngineNotReadyError, RequestError
from engine.grammar import GrammarCompiler
from engine.loading import load_model
from engine.output_processor import ProcessedOutputs
from engine.outputs import RequestFinished
from engine.pooling import StateSum
from engine.request_stream import RequestStream
from engine.sampling_params import SamplingParams, validate_for_model
from engine.sequence import Request
from engine.stats import (
    BlockCells,
    BlockDetail,
    BlockMap,
    EngineStats,
    EngineStatus,
    FinishedCandidate,
    ModelInfo,
    RequestDetail,
    RequestInfo,
    RequestsReport,
)
from engine.waiting_room import WaitingRoom
from engine.worker import (
    SHUT_DOWN,
    Answer,
    Batch,
    Codec,
    Ended,
    LoadedModel,
    Message,
    Progress,
    Ready,
    Refused,
    Worker,
)

NUM_TOKENIZER_THREADS = 2
LOADING_TIMEOUT_S = 0.5
DRAW_NOTHING = SamplingParams(max_tokens=0)

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class AsyncEngine:
    """One engine with one worker thread. `load` makes the model from `config`, in that thread."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        load: Callable[[EngineConfig, Progress], LoadedModel] = load_model,
    ) -> None:
        self._worker = Worker(partial(load, config), self._post)
        self._pool = ThreadPoolExecutor(NUM_TOKENIZER_THREADS, thread_name_prefix="tokenizer")
        self._ids = itertools.count(1)
        self._room = WaitingRoom(config.max_waiting)
        self._streams: weakref.WeakValueDictionary[int, RequestStream] = (
            weakref.WeakValueDictionary()
        )
        self._awaited: set[RequestStream] = set()
        self._answers: dict[object, asyncio.Future] = {}
        self._listeners: list[Callable[[FinishedCandidate], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._model: LoadedModel | None = None
        self._grammars: GrammarCompiler | None = None
        self._error: EngineError | None = None
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin loading in the worker thread; returns at once. `status` follows, `wait_ready` waits."""
        self._loop = asyncio.get_running_loop()
        self._worker.start()

    async def wait_ready(self) -> None:
        """Return when ready; raises ModelLoadError (or EngineDeadError) when that will never happen."""
        await self._settled.wait()
        if self._error is not None:
            raise self._error

    async def shutdown(self) -> None:
        """Abort everything, end the worker thread. Streams end with their terminal event. Idempotent.

        A thread that is in the midst of loading and does not break off soon, as it compiles, is left to end with the process.
        """
        if self._loop is None:
            self._end(EngineDeadError(SHUT_DOWN))
        elif not self._ended.is_set():
            self._worker.stop()
            if self._model is None and not await self._ends_within(LOADING_TIMEOUT_S):
                self._end(EngineDeadError(SHUT_DOWN))
            else:
                await self._ended.wait()
                self._worker.join()
        self._pool.shutdown(wait=False)
        if self._grammars is not None:
            self._grammars.close()

    @property
    def status(self) -> EngineStatus:
        """Loading with its stage, ready, or dead with the error."""
        if self._error is not None:
            return EngineStatus("dead", "dead", error=str(self._error))
        return self._worker.status

    # --- what can be seen ------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        """What start-up chose; raises EngineNotReadyError while loading."""
        return self._loaded().runner.info

    @property
    def stats(self) -> EngineStats:
        """The latest published picture; raises EngineNotReadyError while loading."""
        self._loaded()
        assert self._worker.stats is not None, "ready without stats"
        return self._worker.stats

    def add_finished_listener(self, listener: Callable[[FinishedCandidate], None]) -> None:
        """Call `listener` in the event loop for every candidate that ends."""
        self._listeners.append(listener)

    async def block_map(self) -> BlockMap:
        """Every block, in order of id, as of between two steps; whoever iterates does the work."""
        return await self._ask(EngineCore.block_map)

    async def requests(self) -> tuple[RequestInfo, ...]:
        """The live requests in order of arrival."""
        return await self._ask(EngineCore.requests)

    async def requests_report(self) -> RequestsReport:
        """Live and ended requests, and what sharing saves, all of one moment."""
        return await self._ask(EngineCore.requests_report)

    async def request(self, request_id: int) -> RequestDetail | None:
        """A live request, or one that has ended lately, with what happened to it."""
        return await self._ask(lambda core: core.request(request_id))

    async def block_cells(self) -> BlockCells:
        """Every block in compact form, for a map that is drawn often."""
        return await self._ask(EngineCore.block_cells)

    async def block(self, block_id: int) -> BlockDetail | None:
        """One block and who holds it; None if there is no such block."""
        return await self._ask(lambda core: core.block(block_id))

    def abort(self, request_id: int) -> None:
        """End a request, whoever reads its stream. Too late is not an error."""
        self._worker.abort(request_id, None)

    async def count_resident(self, token_ids: Sequence[int]) -> int:
        """How many of the first tokens need not be computed again, as of between two steps; asking changes nothing."""
        return await self._ask(lambda core: core.count_resident(list(token_ids)))

    # --- text ------------------------------------------------------------------------------------

    @property
    def most_characters(self) -> int:
        """A longer text fits the context in no tokens; raises EngineNotReadyError while loading."""
        return self.info.max_model_len * self._tokenizer().longest_token

    @property
    def knows_tools(self) -> bool:
        """Whether the model's chat template shows tools; raises EngineNotReadyError while loading."""
        return self._tokenizer().knows_tools

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], options: TemplateOptions = DEFAULT_OPTIONS
    ) -> list[int]:
        """Token ids of `messages` (as `engine.messages` says) through the model's chat template, off the event loop.

        Control tokens inside a message's content stay text. Raises RequestError naming `messages[i].…`.
        """
        return await self._in_pool(partial(self._tokenizer().render_chat, messages, options))

    async def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt (control tokens are parsed), off the event loop."""
        return await self._in_pool(partial(self._tokenizer().encode, text))

    async def encode_answer(self, text: str) -> list[int]:
        """Token ids of the beginning of an answer (control tokens stay text), off the event loop."""
        return await self._in_pool(partial(self._tokenizer().encode_answer, text))

    async def token_texts(self, token_ids: Sequence[int]) -> list[TokenText]:
        """What each token adds to an answer's text, off the event loop."""
        visible_bytes = self._tokenizer().visible_bytes
        return await self._in_pool(partial(token_texts, token_ids, visible_bytes))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens shown, off the event loop."""
        return await self._in_pool(partial(self._tokenizer().decode, token_ids))

    # --- requests --------------------------------------------------------------------------------

    async def prepare(self, params: SamplingParams) -> None:
        """Check what no prompt can run with, and compile the grammar off the event loop, so that `submit` need not.

        Raises RequestError that names the field, and the place in a grammar.
        """
        grammars, runner = self._compiler(), self._alive().runner
        validate_for_model(params, runner.info.vocab_size, runner.info.max_num_seqs)
        check_params(runner.scheduler_config, params)
        if params.grammar is not None:
            await asyncio.wrap_future(grammars.compile_soon(params.grammar))

    def check_request(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Raise what `submit` would raise, and do nothing: chat stores a turn between the two.

        RequestError when it can never run (too long, empty, n over max_num_seqs, ids out of the vocabulary),
        EngineNotReadyError, EngineDeadError.
        """
        model = self._alive()
        info = model.runner.info
        validate_for_model(params, info.vocab_size, info.max_num_seqs)
        check_request(model.runner.scheduler_config, prompt_token_ids, params)
        if params.grammar is not None:
            self._compiler().compile(params.grammar)
        low, high = min(prompt_token_ids), max(prompt_token_ids)
        if low < 0 or high >= info.vocab_size:
            message = f"the prompt has token id {low if low < 0 else high}; {info.vocab_size - 1} is the largest"
            raise RequestError(message, param="prompt")

    def keep_place(self) -> Callable[[], None]:
        """Take a place among those that wait, for a request to come: chat stores a turn before it submits.

        The function returned gives it back; calling it right before `submit` makes sure of the place. Raises OverloadedError.
        """
        return self._room.keep_place()

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> RequestStream:
        """Hand a request to the engine; returns its stream at once.

        Raises as `check_request` does, and OverloadedError when too many wait. A refused request holds nothing.
        """
        self.check_request(prompt_token_ids, params)
        return self._enter(prompt_token_ids, params, None)

    def embed(self, prompt_token_ids: Sequence[int]) -> RequestStream:
        """Hand a prompt to the engine to be embedded; returns its stream at once, which has the `Embedding` before its end.

        Raises as `submit` does for a prompt after which no token is drawn. A refused request holds nothing.
        """
        self.check_request(prompt_token_ids, DRAW_NOTHING)
        return self._enter(prompt_token_ids, DRAW_NOTHING, StateSum())

    # --- inside ----------------------------------------------------------------------------------

    def _enter(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, state_sum: StateSum | None
    ) -> RequestStream:
        request_id, arrival_time = next(self._ids), time.monotonic()
        grammar = None if params.grammar is None else self._compiler().compile(params.grammar)
        prompt = list(prompt_token_ids)
        self._room.enter(request_id)
        request = Request(request_id, prompt, params, arrival_time, state_sum, grammar)
        stream = RequestStream(request_id, params.n, self._worker.abort, self._awaited)
        self._streams[request_id] = stream
        self._worker.submit(request)
        return stream

    async def _ends_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return self._ended.is_set()

    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise self._error or EngineNotReadyError(f"the model is loading: {self.status.stage}")
        return self._model

    def _alive(self) -> LoadedModel:
        if self._error is not None:
            raise EngineDeadError(str(self._error))
        return self._loaded()

    def _tokenizer(self) -> Codec:
        return self._alive().tokenizer

    def _compiler(self) -> GrammarCompiler:
        self._alive()
        assert self._grammars is not None, "ready without a compiler of grammars"
        return self._grammars

    async def _in_pool(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def _ask(self, question: Callable[[EngineCore], Result]) -> Result:
        self._alive()
        key = object()
        self._answers[key] = asyncio.get_running_loop().create_future()
        try:
            self._worker.ask(key, question)
            return await self._answers[key]
        finally:
            del self._answers[key]

    def _post(self, message: Message) -> None:
        """Worker thread: hand a message to the loop; a loop that is closed wants no more."""
        assert self._loop is not None, "the worker runs without start"
        try:
            self._loop.call_soon_threadsafe(self._receive, message)
        except RuntimeError:
            self._worker.stop()

    def _receive(self, message: Message) -> None:
        match message:
            case Batch(outputs):
                self._deliver(outputs)
            case Answer(key, value):
                future = self._answers.get(key)
                if future is not None and not future.done():
                    future.set_result(value)
            case Ready() if self._error is not None:
                return
            case Ready(model):
                self._model = model
                self._grammars = _grammar_compiler(model)
                self._settled.set()
            case Refused(request_id, error):
                self._fail(request_id, error)
            case Ended(error):
                self._end(error)
            case _:
                assert_never(message)

    def _deliver(self, outputs: ProcessedOutputs) -> None:
        for request_id, event in outputs.events:
            self._room.leave(request_id)
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.push(event)
            if isinstance(event, RequestFinished):
                self._streams.pop(request_id, None)
        for candidate in outputs.finished:
            for listener in self._listeners:
                self._notify(listener, candidate)

    def _notify(
        self, listener: Callable[[FinishedCandidate], None], candidate: FinishedCandidate
    ) -> None:
        try:
            listener(candidate)
        except Exception:
            logger.exception("a listener for finished candidates failed")

    def _fail(self, request_id: int, error: str) -> None:
        self._room.leave(request_id)
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.fail(error)

    def _end(self, error: EngineError) -> None:
        """The worker is gone: nobody may wait for it any more."""
        self._error = error
        for request_id in list(self._streams):
            self._fail(request_id, str(error))
        for future in self._answers.values():
            if not future.done():
                future.set_exception(EngineDeadError(str(error)))
        self._settled.set()
        self._ended.set()


def _grammar_compiler(model: LoadedModel) -> GrammarCompiler:
    runner = model.runner
    eos_token_ids = runner.scheduler_config.eos_token_ids
    return GrammarCompiler(model.tokenizer, runner.info.vocab_size, eos_token_ids)
