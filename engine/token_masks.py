"""What grammars allow at a step: masks of a bit for each token id, lowest first, or why a grammar cannot go on.

`MaskThread` works them out beside the forward pass: a call to the grammar's library for each row, which drops the GIL. They stay
packed: unpacking one costs more than working it out.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from engine.errors import GrammarError
from engine.outputs import SampleRequest

Masks = Mapping[int, bytes | str]
"""By seq_id the mask, or what the grammar gave up with."""


class MaskThread:
    """Works out the masks of a step at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._masks: Future[Masks] | None = None

    def prepare(self, requests: Sequence[SampleRequest]) -> None:
        """Begin with the masks of those of `requests` that follow a grammar."""
        bound = [request for request in requests if request.matcher is not None]
        self._masks = self._pool.submit(find_masks, bound) if bound else None

    def take(self) -> Masks:
        """The masks that were begun last, when they are there."""
        return {} if self._masks is None else self._masks.result()


def find_masks(requests: Sequence[SampleRequest]) -> Masks:
    """The masks of requests that follow a grammar each."""
    return {request.seq_id: _find_mask(request) for request in requests}


def _find_mask(request: SampleRequest) -> bytes | str:
    assert request.matcher is not None, "only what has a grammar has a mask"
    try:
        return request.matcher.allowed(request.output_token_ids)
    except GrammarError as error:
        return str(error)


def ids_in(mask: bytes) -> NDArray[np.integer]:
    """The token ids that a mask allows, ascending."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))


class PackedMasks:
    """The masks of a step's rows side by side, for compiled code: it reads 16 bits at a time."""

    def __init__(self, masks: Masks, requests: Sequence[SampleRequest], vocab_size: int) -> None:
        bound = {row: r.seq_id for row, r in enumerate(requests) if r.matcher is not None}
        found = {row: masks[seq_id] for row, seq_id in bound.items()}
        packed = {row: mask for row, mask in found.items() if isinstance(mask, bytes)}
        self.failed = {row for row, mask in found.items() if isinstance(mask, str)}
        """Rows whose grammar cannot go on."""
        size = -(-vocab_size // 16) * 2
        self._bits = np.frombuffer(
            b"".join(mask[:size].ljust(size, b"\0") for mask in packed.values()), np.uint8
        )
        first = self._bits.ctypes.data
        self._addresses = {row: first + place * size for place, row in enumerate(packed)}

    def address(self, row: int) -> int:
        """Where the row's mask begins, as long as this object lives; 0 for a row without."""
        return self._addresses.get(row, 0)
