"""The answer of /v1/embeddings: the vectors of one request's inputs, in their order.

All inputs are in the engine together. Each vector is written as JSON when it comes, so a large answer does not hold up the
event loop.
"""

import json
import math
import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.access import access_of
from api.context import ApiContext
from api.engine_calls import failure_of, running_together, unless_disconnected
from api.errors import ApiError
from api.generation import Prompt
from chat.ports import Stream
from engine.errors import RequestError
from engine.outputs import CandidateFinished, Embedding, EngineEvent, FinishReason


@dataclass(frozen=True)
class EmbeddingJob:
    """One HTTP request. `dimensions` is how many numbers of a vector are kept."""

    prompts: list[Prompt]
    model: str
    dimensions: int
    as_base64: bool


class EmbeddingResponse(Response):
    """Carries out a job when it is sent."""

    def __init__(self, context: ApiContext, job: EmbeddingJob) -> None:
        super().__init__()
        self._context, self._job = context, job
        self._num_tokens = sum(len(prompt.token_ids) for prompt in job.prompts)
        self._vectors: dict[int, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_disconnected(receive, lambda: self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        submits = [partial(self._submit, prompt) for prompt in self._job.prompts]
        async with running_together(self._context, submits) as events:
            async for number, event in events:
                self._take_in(number, event)
        access_of(scope).tokens["prompt_tokens"] = self._num_tokens
        await Response(self._document(), media_type="application/json")(scope, receive, send)

    def _submit(self, prompt: Prompt) -> Stream:
        try:
            return self._context.engine.embed(prompt.token_ids)
        except RequestError as error:
            message = f"{prompt.param}: {error.message}"
            raise RequestError(message, param=prompt.param, code=error.code) from None

    def _take_in(self, number: int, event: EngineEvent) -> None:
        match event:
            case Embedding(values):
                self._vectors[number] = self._vector_json(number, values)
            case CandidateFinished(finish_reason=FinishReason.ERROR):
                raise failure_of(event)
            case CandidateFinished(finish_reason=FinishReason.ABORT):
                raise ApiError(503, "the server is shutting down", code="shutting_down")

    def _vector_json(self, index: int, values: Sequence[float]) -> str:
        kept = _truncate(values, self._job.dimensions)
        packed = struct.pack(f"<{len(kept)}f", *kept)
        vector = b64encode(packed).decode() if self._job.as_base64 else _unpack(packed)
        return _json({"object": "embedding", "index": index, "embedding": vector})

    def _document(self) -> str:
        vectors = ",".join(self._vectors[number] for number in range(len(self._job.prompts)))
        usage = _json({"prompt_tokens": self._num_tokens, "total_tokens": self._num_tokens})
        model = _json(self._job.model)
        return f'{{"object":"list","data":[{vectors}],"model":{model},"usage":{usage}}}'


def _truncate(values: Sequence[float], dimensions: int) -> list[float]:
    """The first numbers of a vector, at length 1 again; zeros stay zeros."""
    length = math.hypot(*values[:dimensions]) or 1.0
    return [value / length for value in values[:dimensions]]


def _unpack(packed: bytes) -> list[float]:
    """Numbers as float32 has them, so that both formats say the same."""
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
