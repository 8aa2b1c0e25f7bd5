"""Requests and sequences: seeds, what may be drawn, counts and times."""

import pytest

from engine.beam_params import BeamParams
from engine.beam_search import BeamSearch
from engine.outputs import Timings, Usage
from engine.sampling_params import SamplingParams
from engine.sequence import BeamGroup, Request, Sequence


def make_sequence(index: int = 0, **params: object) -> Sequence:
    request = Request(1, [5, 6, 7], SamplingParams(**params), 100.0)  # pyright: ignore[reportArgumentType]
    return Sequence(9, request, index, 8, frozenset({40, 30}))


@pytest.mark.parametrize(
    ("seed", "index", "expected"), [(None, 3, None), (7, 0, 7), (7, 2, 9), (2**64 - 1, 2, 1)]
)
def test_seed_of_a_candidate_is_the_seed_plus_its_index_in_64_bits(
    seed: int | None, index: int, expected: int | None
) -> None:
    assert make_sequence(index, seed=seed).seed == expected


def test_a_candidate_is_drawn_at_its_own_temperature() -> None:
    drawn = [
        make_sequence(index, n=3, temperatures=(0.0, 0.5, 1.5)).sample_request().params
        for index in range(3)
    ]
    assert [params.temperature for params in drawn] == [0.0, 0.5, 1.5]
    assert [params.is_greedy for params in drawn] == [True, False, False]
    shared = make_sequence(1, n=3, temperature=0.7)
    assert shared.sample_request().params is shared.request.params


def test_tokens_are_prompt_then_output() -> None:
    seq = make_sequence()
    seq.append(50, 1.0)
    assert seq.token_ids == [5, 6, 7, 50]
    assert seq.output_token_ids == [50]
    assert seq.request.prompt_token_ids == [5, 6, 7]
    assert (seq.num_prompt_tokens, seq.num_tokens, seq.num_uncomputed_tokens) == (3, 4, 4)


def test_tokens_that_end_are_forbidden_until_min_tokens_are_drawn() -> None:
    seq = make_sequence(min_tokens=2)
    forbidden = []
    for _ in range(4):
        forbidden.append(seq.sample_request().forbidden_token_ids)
        seq.append(50, 1.0)
    assert forbidden == [(30, 40), (30, 40), (), ()]


def test_sample_request_is_kept_and_sees_new_tokens() -> None:
    seq = make_sequence()
    request = seq.sample_request()
    seq.append(50, 1.0)
    assert seq.sample_request() is request
    assert list(request.output_token_ids) == [50]


def test_usage_counts_prompt_output_and_cached() -> None:
    seq = make_sequence()
    seq.num_cached_tokens = 2
    seq.append(50, 1.0)
    assert seq.usage() == Usage(3, 1, 2)


def test_timings_of_a_whole_life() -> None:
    seq = make_sequence()
    seq.request.first_scheduled_time = 101.0
    for now in (103.0, 104.0, 107.0):
        seq.append(50, now)
    assert seq.timings(200.0) == Timings(
        queue_ms=1000,
        prefill_ms=2000,
        ttft_ms=3000,
        decode_ms=4000,
        tokens_per_second=0.5,
        tokens_per_step=1,
    )


def test_timings_of_a_sequence_that_never_ran() -> None:
    assert make_sequence().timings(102.0) == Timings(2000, 0, 0, 0, 0, 0)


def test_timings_of_an_unfinished_prefill() -> None:
    seq = make_sequence()
    seq.request.first_scheduled_time = 101.0
    assert seq.timings(102.0) == Timings(1000, 1000, 0, 0, 0, 0)


def beams(is_gathered: bool, *fork_positions: int) -> Sequence:
    """The leader of a group, its prompt of 3 computed, with 2 tokens of output."""
    seq = make_sequence(beams=BeamParams(width=4))
    search = BeamSearch(seq.request.params, frozenset({30, 40}), 8)
    seq.request.group = BeamGroup(search, {0}, is_gathered)
    seq.append(50, 1.0)
    seq.append(51, 1.0)
    seq.num_computed_tokens = 3
    for position in fork_positions:
        follower = Sequence(10, seq.request, 1, 8, frozenset())
        follower.fork_position = position
        seq.followers.append(follower)
    return seq


@pytest.mark.parametrize(
    ("is_gathered", "fork_positions", "num_ready"),
    [(True, (), 2), (False, (), 1), (False, (4, 4), 1), (False, (5, 3), 0), (True, (5,), 2)],
)
def test_a_beam_computes_until_others_part_from_it_or_must_catch_up(
    is_gathered: bool, fork_positions: tuple[int, ...], num_ready: int
) -> None:
    seq = beams(is_gathered, *fork_positions)
    assert seq.num_ready_tokens == num_ready
    assert seq.num_joint_tokens == 3 + num_ready


def test_a_beam_asks_for_all_it_may_go_on_with() -> None:
    assert beams(True).sample_request().num_candidates == 6
    assert make_sequence().sample_request().num_candidates == 0


def test_a_sequence_becomes_another_beam_and_its_request_to_sample_sees_it() -> None:
    seq, other = beams(True), beams(True)
    request = seq.sample_request()
    other.append(52, 2.0)
    seq.become(other)
    seq.append(53, 3.0)
    assert seq.token_ids == [5, 6, 7, 50, 51, 52, 53]
    assert list(request.output_token_ids) == [50, 51, 52, 53]
    assert other.token_ids == [5, 6, 7, 50, 51, 52]
    assert (seq.first_token_time, seq.last_token_time) == (1.0, 3.0)
