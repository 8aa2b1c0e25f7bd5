"""What grammars allow at a step: masks of a bit for each token id, lowest first, or why a grammar cannot go on.

`MaskThread` works them out beside the forward pass: a call to the grammar's library for each row, which drops the GIL. Compiled
code reads them packed, as unpacking one costs more than working it out; numpy wants ids.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.errors import GrammarError
from engine.outputs import Failure, FailureCode, SampleRequest

Ids = NDArray[np.integer]
Found = TypeVar("Found")
Masks = Mapping[int, bytes | Failure]
"""By seq_id the mask, or what the grammar gave up with."""
Allowed = Mapping[int, Ids | Failure]
"""By seq_id the ids in its mask, ascending, or what the grammar gave up with."""


class MaskThread(Generic[Found]):
    """Works out what is allowed at a step, one step at a time: `find_masks` or `find_ids`."""

    def __init__(
        self, find: Callable[[Sequence[SampleRequest]], Mapping[int, Found | Failure]]
    ) -> None:
        self._find = find
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._found: Future[Mapping[int, Found | Failure]] | None = None

    def prepare(self, requests: Sequence[SampleRequest]) -> None:
        """Begin with those of `requests` that follow a grammar."""
        bound = [request for request in requests if request.matcher is not None]
        self._found = self._pool.submit(self._find, bound) if bound else None

    def take(self) -> Mapping[int, Found | Failure]:
        """What was begun last, when it is there."""
        return {} if self._found is None else self._found.result()


def find_masks(requests: Sequence[SampleRequest]) -> Masks:
    """The masks of requests that follow a grammar each."""
    return {request.seq_id: _find_mask(request) for request in requests}


def _find_mask(request: SampleRequest) -> bytes | Failure:
    assert request.matcher is not None, "only what has a grammar has a mask"
    try:
        return request.matcher.allowed(request.output_token_ids)
    except GrammarError as error:
        return Failure(str(error), FailureCode.GRAMMAR)


def find_ids(requests: Sequence[SampleRequest]) -> Allowed:
    """The ids that are allowed to requests that follow a grammar each."""
    return unpacked(find_masks(requests))


def unpacked(masks: Masks) -> Allowed:
    """Masks as the ids in them."""
    return {
        key: mask if isinstance(mask, Failure) else _ids_in(mask) for key, mask in masks.items()
    }


def _ids_in(mask: bytes) -> Ids:
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))


class PackedMasks:
    """The masks of a step's rows side by side, for compiled code: it reads 16 bits at a time."""

    def __init__(self, masks: Masks, requests: Sequence[SampleRequest], vocab_size: int) -> None:
        bound = {row: r.seq_id for row, r in enumerate(requests) if r.matcher} if masks else {}
        found = {row: masks[seq_id] for row, seq_id in bound.items()}
        packed = {row: mask for row, mask in found.items() if isinstance(mask, bytes)}
        self.failed = {row for row, mask in found.items() if isinstance(mask, Failure)}
        """Rows whose grammar cannot go on."""
        size = -(-vocab_size // 16) * 2
        self._bits = np.frombuffer(
            b"".join(mask[:size].ljust(size, b"\0") for mask in packed.values()), np.uint8
        )
        first = self._bits.ctypes.data if packed else 0
        self._addresses = {row: first + place * size for place, row in enumerate(packed)}

    def address(self, row: int) -> int:
        """Where the row's mask begins, as long as this object lives; 0 for a row without."""
        return self._addresses.get(row, 0)
