"""A stand-in for `engine.async_engine.AsyncEngine` with scripted text: same surface, no model, no thread.

Rooms above the engine (chat, api, ui) are tested against it, and the page can be tried with it. Every surface
method here exists on the real engine with the same meaning; tests/engine/test_async_engine.py compares the two.
"""

import itertools
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.chat_template import DEFAULT_OPTIONS, TemplateOptions
from engine.detokenizer import TokenText, token_texts
from engine.errors import EngineNotReadyError, RequestError
from engine.sampling_params import SamplingParams, validate_for_model
from engine.stats import (
    BlockCells,
    BlockCounts,
    BlockDetail,
    BlockHolder,
    BlockMap,
    BlockState,
    CounterfactualBytes,
    Counters,
    EngineStats,
    EngineStatus,
    FinishedCandidate,
    InternalFragmentation,
    ModelInfo,
    RequestDetail,
    RequestInfo,
    RequestsReport,
)
from engine.timeline import RequestEvent
from engine.waiting_room import WaitingRoom
from tests.fake_streams import HIDDEN_SIZE, FakeEmbeddingStream, FakeStream

BLOCK_SIZE = 16
Interval = float | Callable[[Sequence[int]], float]


def _info(request_id: int, stream: FakeStream) -> RequestInfo:
    n, size, reasons = stream.params.n, len(stream.prompt), tuple(stream.finish_reasons)
    private, shared, saved = (6, 0, 0) if reasons and len(reasons) == n - 1 else (2, 4, 8)
    return RequestInfo(
        request_id, "answer", "running", None, n, size, size, 0, 0, private, shared, saved, 0.0,
        finish_reasons=reasons,
    )  # fmt: skip


def _agreement(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many whole blocks of tokens both begin with, in tokens."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
    return sum(1 for _ in same) // BLOCK_SIZE * BLOCK_SIZE


class FakeEngine:
    """Streams `script(prompt_token_ids, index) -> list of text pieces`, one piece per `token_interval` seconds.

    The interval may be a function of prompt_token_ids. A token is a byte of UTF-8; limits and usage count pieces.
    """

    def __init__(
        self,
        script: Callable[[Sequence[int], int], list[str]] | None = None,
        *,
        token_interval: Interval = 0.0,
        num_blocks: int = 256,
    ) -> None:
        self.script = script or (lambda prompt, index: [f"word{index}-{i} " for i in range(12)])
        self.token_interval: Interval = token_interval
        self.num_blocks = num_blocks
        self.room = WaitingRoom(0)
        self.template_knows_tools = False
        self.rendered: list[tuple[list[Mapping[str, Any]], TemplateOptions]] = []
        self.ids = itertools.count(1)
        self.live: dict[int, FakeStream] = {}
        self.listeners: list[Callable[[FinishedCandidate], None]] = []
        self.generated_tokens = 0
        self.computed: list[list[int]] = []
        self.status = EngineStatus("ready", "ready", 1.0)

    def start(self) -> None:
        """Begin loading in the worker thread; returns at once. `status` follows, `wait_ready` waits."""

    async def wait_ready(self) -> None:
        """Return when ready; raises ModelLoadError (or EngineDeadError) when that will never happen."""

    async def shutdown(self) -> None:
        """Abort everything, end the worker thread. Streams end with their terminal event. Idempotent."""
        for stream in list(self.live.values()):
            stream.abort()

    @property
    def info(self) -> ModelInfo:
        """What start-up chose; raises EngineNotReadyError while loading."""
        self._check_ready()
        return ModelInfo(
            model_name="fake",
            architecture="FakeForCausalLM",
            num_parameters=1_000_000,
            quantization="none",
            dtype="float32",
            kv_cache_dtype="float32",
            attention_backend="reference",
            backend_reason="a test",
            device="cpu",
            max_model_len=2048,
            max_num_seqs=64,
            max_num_batched_tokens=512,
            vocab_size=256,
            hidden_size=HIDDEN_SIZE,
            block_size=BLOCK_SIZE,
            num_blocks=self.num_blocks,
            num_blocks_reason="a test",
            bytes_per_block=1024,
            load_seconds=0.0,
        )

    @property
    def stats(self) -> EngineStats:
        """The latest published picture; raises EngineNotReadyError while loading."""
        self._check_ready()
        used = min(4 * len(self.live), self.num_blocks)
        return EngineStats(
            time=time.time(),
            num_steps=self.generated_tokens,
            blocks=BlockCounts(self.num_blocks, used, 0, 0, self.num_blocks - used, BLOCK_SIZE),
            tokens_capacity=self.num_blocks * BLOCK_SIZE,
            tokens_stored=used * BLOCK_SIZE,
            num_running=len(self.live),
            num_waiting=0,
            waiting_capacity=0,
            waiting_budget=0,
            counters=Counters(generated_tokens=self.generated_tokens),
            counterfactual_bytes=CounterfactualBytes(1, 4, 2, 1),
            counterfactual_bytes_ended=CounterfactualBytes(16, 64, 32, 15),
            internal_fragmentation=InternalFragmentation(6, 0.25),
        )

    def add_finished_listener(self, listener: Callable[[FinishedCandidate], None]) -> None:
        """Call `listener` in the event loop for every candidate that ends."""
        self.listeners.append(listener)

    async def block_map(self) -> BlockMap:
        """Every block, in order of id, as of between two steps; whoever iterates does the work."""
        cells = await self.block_cells()
        owned = [(owner, i) for i, owner in enumerate(cells.owners) if owner]
        tables = {owner: tuple(i for each, i in owned if each == owner) for owner, _ in owned}
        return BlockMap(cells.states, tuple(tables.items()))

    async def requests(self) -> tuple[RequestInfo, ...]:
        """The live requests in order of arrival; once all candidates but one have ended, nothing of one is shared."""
        return tuple(_info(request_id, stream) for request_id, stream in self.live.items())

    async def requests_report(self) -> RequestsReport:
        """Live and ended requests, and what sharing saves, all of one moment."""
        return RequestsReport(await self.requests(), (), 3, 1)

    async def request(self, request_id: int) -> RequestDetail | None:
        """A live request, or one that has ended lately, with what happened to it."""
        infos = [info for info in await self.requests() if info.request_id == request_id]
        events = (RequestEvent(0.0, "queued", 0, 3, 0), RequestEvent(0.5, "started", 0, 0, 4))
        return RequestDetail(infos[0], events) if infos else None

    async def block_cells(self) -> BlockCells:
        """Every block in compact form, for a map that is drawn often."""
        owners = [request_id for request_id in self.live for _ in range(4)][: self.num_blocks]
        num_free = self.num_blocks - len(owners)
        return BlockCells(
            bytes([2] * len(owners) + [0] * num_free), array("Q", owners + [0] * num_free)
        )

    async def block(self, block_id: int) -> BlockDetail | None:
        """One block and who holds it; None if there is no such block."""
        if not 0 <= block_id < self.num_blocks:
            return None
        owner = (await self.block_cells()).owners[block_id]
        if not owner:
            return BlockDetail(block_id, BlockState.FREE, 0, 0, ())
        holder = BlockHolder(owner, 0, block_id % 4)
        return BlockDetail(block_id, BlockState.PRIVATE, 1, BLOCK_SIZE, (holder,))

    def abort(self, request_id: int) -> None:
        """End a request, whoever reads its stream. Too late is not an error."""
        if stream := self.live.get(request_id):
            stream.abort()

    async def count_resident(self, token_ids: Sequence[int]) -> int:
        """How many of the first tokens need not be computed again, as of between two steps; asking changes nothing.

        Here all that was ever computed is resident.
        """
        return max((_agreement(token_ids, each) for each in self.computed), default=0)

    @property
    def most_characters(self) -> int:
        """A longer text fits the context in no tokens; raises EngineNotReadyError while loading."""
        return 4 * self.info.max_model_len

    @property
    def knows_tools(self) -> bool:
        """Whether the model's chat template shows tools; raises EngineNotReadyError while loading."""
        self._check_ready()
        return self.template_knows_tools

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], options: TemplateOptions = DEFAULT_OPTIONS
    ) -> list[int]:
        """Token ids of `messages` (as `engine.messages` says) through the model's chat template, off the event loop.

        Control tokens inside a message's content stay text. Raises RequestError naming `messages[i].…`.
        """
        if not messages:
            raise RequestError("messages must not be empty", param="messages")
        self.rendered.append((list(messages), options))
        text = "".join(f"<{m['role']}>{m['content']}\n" for m in messages)
        if options.continue_final_message:
            return list(text[:-1].encode())
        return list(text.encode())

    async def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt (control tokens are parsed), off the event loop."""
        return list(text.encode())

    async def encode_answer(self, text: str) -> list[int]:
        """Token ids of the beginning of an answer (control tokens stay text), off the event loop."""
        return list(text.encode())

    async def token_texts(self, token_ids: Sequence[int]) -> list[TokenText]:
        """What each token adds to an answer's text, off the event loop."""
        return token_texts(token_ids, lambda token_id: bytes([token_id % 256]))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens shown, off the event loop."""
        return bytes(i % 256 for i in token_ids).decode(errors="replace")

    async def prepare(self, params: SamplingParams) -> None:
        """Check what no prompt can run with, and compile the grammar off the event loop, so that `submit` need not.

        Raises RequestError that names the field, and the place in a grammar. Here "(" is the grammar that is wrong.
        """
        self._check_ready()
        validate_for_model(params, self.info.vocab_size, self.info.max_num_seqs)
        if params.grammar is not None and params.grammar.text == "(":
            param = params.grammar.param
            raise RequestError(f"{param}: cannot be compiled", param=param)

    def check_request(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Raise what `submit` would raise, and do nothing: chat stores a turn between the two.

        RequestError when it can never run (too long, empty, n over max_num_seqs, ids out of the vocabulary),
        EngineNotReadyError, EngineDeadError.
        """
        self._check_ready()
        validate_for_model(params, self.info.vocab_size, self.info.max_num_seqs)
        if not prompt_token_ids:
            raise RequestError("the prompt is empty", param="prompt")
        num_fitting = self.info.max_model_len - (params.max_tokens != 0)
        if len(prompt_token_ids) > num_fitting:
            raise RequestError(
                f"the prompt has {len(prompt_token_ids)} tokens; {num_fitting} fit",
                param="prompt",
                code="context_length_exceeded",
            )

    def keep_place(self) -> Callable[[], None]:
        """Take a place among those that wait, for a request to come: chat stores a turn before it submits.

        The function returned gives it back; calling it right before `submit` makes sure of the place. Raises OverloadedError.
        """
        return self.room.keep_place()

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> FakeStream:
        """Hand a request to the engine; returns its stream at once.

        Raises as `check_request` does, and OverloadedError when too many wait. A refused request holds nothing.
        """
        self.check_request(prompt_token_ids, params)
        self.room.keep_place()()
        return FakeStream(self, list(prompt_token_ids), params)

    def embed(self, prompt_token_ids: Sequence[int]) -> FakeStream:
        """Hand a prompt to the engine to be embedded; returns its stream at once, which has the `Embedding` before its end.

        Raises as `submit` does for a prompt after which no token is drawn. A refused request holds nothing.
        """
        self.check_request(prompt_token_ids, SamplingParams(max_tokens=0))
        self.room.keep_place()()
        return FakeEmbeddingStream(self, list(prompt_token_ids))

    def _check_ready(self) -> None:
        if self.status.state != "ready":
            raise EngineNotReadyError(self.status.stage)
