"""The answer of /v1/embeddings: the vectors of one request's inputs, in their order.

The inputs enter the engine in portions, so that those who come meanwhile wait for a few of them and not for all. Each vector
is written as JSON when it comes, and sent by itself, so a large answer neither holds up the event loop nor stands in memory
twice.
"""

import json
import math
import struct
from base64 import b64encode
from collections.abc import Iterator, Sequence
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
from engine.errors import RequestError
from engine.outputs import CandidateFinished, Embedding, EngineEvent, FinishReason
from engine.sampling_params import SamplingParams

PORTION = 32
"""Inputs that are in the engine together: enough short ones for a step of the usual size."""
DRAW_NOTHING = SamplingParams(max_tokens=0)


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
        self._vectors: dict[int, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_disconnected(receive, lambda: self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        for prompt in self._job.prompts:
            self._check(prompt)
        embed = self._context.engine.embed
        submits = [partial(embed, prompt.token_ids) for prompt in self._job.prompts]
        for first in range(0, len(submits), PORTION):
            portion = submits[first : first + PORTION]
            async with running_together(self._context, portion) as events:
                async for number, event in events:
                    self._take_in(first + number, event)
        access_of(scope).tokens["prompt_tokens"] = self._num_tokens
        await self._send(send)

    def _check(self, prompt: Prompt) -> None:
        """Raises RequestError for what can never be computed, before anything is."""
        try:
            self._context.engine.check_request(prompt.token_ids, DRAW_NOTHING)
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
                if self._context.draining:
                    raise ApiError(503, "the server is shutting down", code="shutting_down")
                raise ApiError(403, "an operator has stopped this request", code="stopped")

    def _vector_json(self, index: int, values: Sequence[float]) -> bytes:
        kept = _truncate(values, self._job.dimensions)
        packed = struct.pack(f"<{len(kept)}f", *kept)
        vector = b64encode(packed).decode() if self._job.as_base64 else _unpack(packed)
        return _json({"object": "embedding", "index": index, "embedding": vector})

    async def _send(self, send: Send) -> None:
        num_bytes = sum(map(len, self._parts()))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(num_bytes).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in self._parts():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _parts(self) -> Iterator[bytes]:
        """The document, in parts of a vector each."""
        yield b'{"object":"list","data":['
        for number in range(len(self._job.prompts)):
            yield (b"," if number else b"") + self._vectors[number]
        usage = _json({"prompt_tokens": self._num_tokens, "total_tokens": self._num_tokens})
        yield b'],"model":' + _json(self._job.model) + b',"usage":' + usage + b"}"


def _truncate(values: Sequence[float], dimensions: int) -> list[float]:
    """The first numbers of a vector, at length 1 again; zeros stay zeros."""
    length = math.hypot(*values[:dimensions]) or 1.0
    return [value / length for value in values[:dimensions]]


def _unpack(packed: bytes) -> list[float]:
    """Numbers as float32 has them, so that both formats say the same."""
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
