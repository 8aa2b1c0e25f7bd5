"""Masks of a step: packed as grammars give them, by row, beside the forward pass."""

from collections.abc import Sequence
from ctypes import string_at
from dataclasses import replace

import numpy as np

from engine.outputs import SampleRequest
from engine.sampling_params import SamplingParams
from engine.token_masks import MaskThread, PackedMasks, find_ids, find_masks, unpacked
from tests.engine.test_sampler import NO_WAY_ON, FixedMatcher


def asked_of(matchers: Sequence[FixedMatcher | None]) -> list[SampleRequest]:
    plain = SampleRequest(0, SamplingParams(), 0, [], [])
    return [replace(plain, seq_id=10 + i, matcher=m) for i, m in enumerate(matchers)]


def test_a_mask_has_a_bit_for_each_id() -> None:
    found = unpacked({1: FixedMatcher(0, 9, 63).mask, 2: NO_WAY_ON})
    assert np.asarray(found[1]).tolist() == [0, 9, 63]
    assert found[2] == NO_WAY_ON
    (ids,) = find_ids(asked_of([FixedMatcher(4, 5)])).values()
    assert np.asarray(ids).tolist() == [4, 5]


def test_masks_are_found_for_requests_that_follow_a_grammar() -> None:
    asked = asked_of([FixedMatcher(3), None, FixedMatcher()])
    thread = MaskThread(find_masks)
    assert thread.take() == {}
    thread.prepare(asked)
    assert thread.take() == {10: FixedMatcher(3).mask, 12: NO_WAY_ON}
    thread.prepare(asked[1:2])
    assert thread.take() == {}, "those of an earlier step are gone"


def test_packed_masks_have_whole_pairs_of_bytes_and_nothing_behind_the_vocabulary() -> None:
    asked = asked_of([None, FixedMatcher(3), FixedMatcher(), FixedMatcher(8, 17)])
    masks = find_masks([request for request in asked if request.matcher is not None])
    for vocab_size, size in ((17, 4), (16, 2), (100, 14)):
        packed = PackedMasks(masks, asked, vocab_size)
        assert packed.failed == {2}
        assert (packed.address(0), packed.address(2)) == (0, 0)
        found = [int.from_bytes(string_at(packed.address(row), size), "little") for row in (1, 3)]
        assert found == [1 << 3, (1 << 8 | 1 << 17) % 2 ** (8 * size)]
