"""One generation from the engine to the database and to its subscribers.

What is stored comes first: a candidate's final state is in the database before its event is published.
"""

import logging
from collections.abc import Callable

from chat.checkpoint import Checkpointer
from chat.events import Candidate
from chat.generation import Generation
from chat.ports import Stream
from chat.texts import without_nul
from chat.wire import kv_json, timings_json, usage_json
from engine.outputs import (
    CandidateFinished,
    EngineEvent,
    FinishReason,
    PrefillProgress,
    RequestFinished,
    TextDelta,
)
from storage.conversations import ConversationStore
from storage.errors import StorageError
from storage.records import AnswerEnd, Json

logger = logging.getLogger(__name__)

NOT_ENDED = "the engine ended without finishing this answer"
NOT_STORED = "the answer could not be stored"


class GenerationRun:
    """Reads the stream that `open_stream` gives; every candidate ends exactly once, whatever the engine does."""

    def __init__(
        self,
        generation: Generation,
        open_stream: Callable[[], Stream],
        store: ConversationStore,
        checkpointer: Checkpointer,
    ) -> None:
        self._generation = generation
        self._open_stream = open_stream
        self._store = store
        self._checkpointer = checkpointer
        self._stream: Stream | None = None
        self._aborted: dict[int, str] = {}
        self._kept = {"kept_tokens": len(generation.beginning.token_ids)}

    def abort(self, status: str, index: int | None = None) -> None:
        """End one candidate or all; those that end by it get `status` (stopped | interrupted)."""
        indices = range(len(self._generation.message_ids)) if index is None else [index]
        for each in indices:
            self._aborted.setdefault(each, status)
            if self._stream is not None:
                self._stream.abort(each)

    async def run(self) -> None:
        """Follow the stream to its end; the hub publishes `Finished` afterwards."""
        error = NOT_ENDED
        try:
            self._stream = stream = self._open_stream()
            for index in self._aborted:
                stream.abort(index)
            await self._follow(stream)
        except Exception as exc:
            logger.exception("generation %s failed", self._generation.id)
            error = str(exc) or type(exc).__name__
        for index in range(len(self._generation.message_ids)):
            if index not in self._generation.candidates:
                await self._end(index, FinishReason.ERROR, error=error)

    async def _follow(self, stream: Stream) -> None:
        try:
            async for event in stream:
                await self._handle(event)
        finally:
            await stream.aclose()

    async def _handle(self, event: EngineEvent) -> None:
        match event:
            case PrefillProgress():
                self._generation.publish_progress(event.computed_tokens, event.prompt_tokens)
            case TextDelta():
                self._extend(event)
            case CandidateFinished():
                await self._end(
                    event.index,
                    event.finish_reason,
                    usage=usage_json(event.usage) | self._kept,
                    timings=timings_json(event.timings),
                    kv=kv_json(event.kv),
                    error=event.error and event.error.message,
                )
            case RequestFinished():
                pass

    def _extend(self, delta: TextDelta) -> None:
        generation, index = self._generation, delta.index
        generation.add_tokens(index, delta.token_ids)
        if delta.text:
            generation.publish_delta(index, without_nul(delta.text))
            self._checkpointer.mark(generation.message_ids[index], lambda: generation.answer(index))

    async def _end(
        self,
        index: int,
        reason: FinishReason,
        *,
        usage: Json | None = None,
        timings: Json | None = None,
        kv: Json | None = None,
        error: str | None = None,
    ) -> None:
        answer, status = self._generation.answer(index), self._status(index, reason)
        end = AnswerEnd(
            content=answer.content,
            token_ids=answer.token_ids,
            status=status,
            finish_reason=reason.value,
            usage=usage,
            timings=timings,
            kv=kv,
            error=error,
        )
        if not await self._store_end(self._generation.message_ids[index], end):
            status, reason, error = "error", FinishReason.ERROR, error or NOT_STORED
        generation = self._generation
        generation.publish_candidate(
            Candidate(
                generation.id,
                generation.next_seq,
                index,
                status,
                reason.value,
                usage,
                timings,
                kv,
                error,
            )
        )

    async def _store_end(self, message_id: str, end: AnswerEnd) -> bool:
        self._checkpointer.forget(message_id)
        try:
            await self._store.end_answer(message_id, end)
        except StorageError:
            logger.exception("could not store the end of answer %s", message_id)
            return False
        return True

    def _status(self, index: int, reason: FinishReason) -> str:
        if reason is FinishReason.ABORT:
            return self._aborted.get(index, "interrupted")
        return "error" if reason is FinishReason.ERROR else "done"
