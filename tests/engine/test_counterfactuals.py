"""What contiguous memory would hold: live by the length so far, ended by the final length. 10 bytes a token, blocks of four."""

import pytest

from engine.stats import CounterfactualBytes, InternalFragmentation
from tests.fakes import Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def ended(engine: Harness) -> CounterfactualBytes:
    return engine.scheduler.view.stats().counterfactual_bytes_ended


def fragmentation(engine: Harness) -> InternalFragmentation:
    return engine.scheduler.view.stats().internal_fragmentation


def test_live_load_counts_lengths_so_far_and_each_candidate_whole() -> None:
    engine = Harness(max_model_len=32)
    engine.add(prompt(9), n=2)
    engine.steps(2)
    stats = engine.scheduler.view.stats()
    assert stats.counterfactual_bytes == CounterfactualBytes(
        paged=4 * 4 * 10, max_len=2 * 32 * 10, pow2=2 * 16 * 10, exact=2 * 10 * 10
    )
    assert stats.counterfactual_bytes_ended == CounterfactualBytes()


@pytest.mark.parametrize(
    ("num_prompt", "num_output", "paged", "pow2", "exact"),
    [(3, 2, 4, 4, 4), (4, 2, 8, 8, 5), (8, 1, 8, 8, 8), (9, 1, 12, 16, 9), (6, 0, 8, 8, 6)],
)
def test_ended_sequence_counts_with_its_final_length(
    num_prompt: int, num_output: int, paged: int, pow2: int, exact: int
) -> None:
    """The last token drawn is never stored."""
    engine = Harness(max_model_len=32)
    engine.add(prompt(num_prompt), max_tokens=num_output)
    engine.run()
    assert ended(engine) == CounterfactualBytes(paged * 10, 32 * 10, pow2 * 10, exact * 10)
    assert engine.scheduler.view.stats().counterfactual_bytes == CounterfactualBytes()


def test_ended_sequences_add_up_and_candidates_pay_for_their_prompt_each() -> None:
    engine = Harness(max_model_len=32)
    engine.add(prompt(9), n=2, seed=1, max_tokens=4)
    engine.run()
    engine.add(prompt(2, 50), max_tokens=1)
    engine.run()
    assert ended(engine) == CounterfactualBytes(
        paged=(2 * 12 + 4) * 10,
        max_len=3 * 32 * 10,
        pow2=(2 * 16 + 2) * 10,
        exact=(2 * 12 + 2) * 10,
    )


def test_what_never_ran_has_no_length_and_what_was_preempted_keeps_its_own() -> None:
    engine = Harness(max_model_len=32)
    first = engine.add(prompt(5), n=2, seed=1)
    engine.abort(first)
    assert ended(engine) == CounterfactualBytes()
    second = engine.add(prompt(5))
    engine.steps(3)
    engine.preempt()
    engine.abort(second)
    assert ended(engine).exact == 7 * 10


def test_end_in_the_middle_of_a_prompt_counts_what_was_computed() -> None:
    engine = Harness(max_num_batched_tokens=8)
    request = engine.add(prompt(20))
    engine.step()
    engine.abort(request)
    assert (ended(engine).exact, ended(engine).paged) == (80, 80)


def test_internal_fragmentation_is_what_the_last_blocks_lack() -> None:
    engine = Harness()
    assert fragmentation(engine) == InternalFragmentation(0, 0.0)
    engine.add(prompt(9), n=2, seed=1)
    engine.steps(1)
    assert fragmentation(engine) == InternalFragmentation(3 * 10, 3 / 12)
    engine.steps(1)
    assert fragmentation(engine) == InternalFragmentation(4 * 10, 4 / 16)
    engine.run()
    assert fragmentation(engine) == InternalFragmentation(0, 0.0)
