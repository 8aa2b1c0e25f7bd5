"""Drafts change how many steps an answer takes, and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.beam_params import BeamParams
from engine.config import EngineConfig
from engine.drafts import MAX_ROWS, choose_counts, step_cost
from engine.errors import ConfigError
from engine.outputs import FinishReason, SampleRequest
from engine.prompt_lookup import Guess
from engine.sampling_params import SamplingParams
from engine.sequence import Request
from tests.fakes import EOS_TOKEN_ID, Harness, repetitive_token

TEXT = [11, 12, 13, 14, 15, 16, 17, 18]
PROMPT = [*TEXT, 90, 11, 12]


def again(request: SampleRequest, context: Sequence[int]) -> int:
    """The text over and over, from its beginning behind anything else."""
    last = context[-1]
    return TEXT[(TEXT.index(last) + 1) % len(TEXT)] if last in TEXT else TEXT[0]


def engine(**changes: Any) -> Harness:
    options = {"script": again, "num_speculative_tokens": 5, "num_blocks": 60} | changes
    return Harness(**options)


def num_decode_steps(harness: Harness) -> int:
    return sum(len(plan.scheduled) for plan in harness.runner.plans) - 1


def test_what_repeats_takes_fewer_steps() -> None:
    harness = engine()
    harness.add(PROMPT, max_tokens=40)
    harness.run()
    counters = harness.scheduler.view.stats().counters
    assert num_decode_steps(harness) < 12
    assert counters.generated_tokens == 40
    assert counters.accepted_tokens == 39 - num_decode_steps(harness)
    assert counters.accepted_tokens <= counters.draft_tokens


def test_tokens_per_step_are_reported() -> None:
    harness = engine()
    request = harness.add(PROMPT, max_tokens=40)
    harness.run()
    timings = harness.ends[0, 0]
    assert timings.timings.tokens_per_step == 40 / (1 + num_decode_steps(harness))
    assert request.sequences[0].num_accepted_drafts == 39 - num_decode_steps(harness)


def test_none_by_request_of_the_configuration() -> None:
    harness = engine(num_speculative_tokens=0)
    harness.add(PROMPT, max_tokens=40)
    harness.run()
    assert num_decode_steps(harness) == 39
    assert harness.ends[0, 0].timings.tokens_per_step == 1


def test_the_first_token_is_not_guessed_and_the_last_is_no_draft_too_many() -> None:
    harness = engine()
    harness.add(PROMPT, max_tokens=3)
    harness.run()
    drafts = [entry.num_drafts for plan in harness.runner.plans for entry in plan.scheduled]
    assert drafts == [0, 1]
    assert harness.ends[0, 0].usage.completion_tokens == 3


def test_an_end_among_drafts_ends_there() -> None:
    def ends(request: SampleRequest, context: Sequence[int]) -> int:
        return EOS_TOKEN_ID if context[-1] == 16 and len(context) > 20 else again(request, context)

    harness = engine(script=ends)
    harness.add([*TEXT, EOS_TOKEN_ID, *TEXT, 90, 11, 12], max_tokens=40, ignore_eos=False)
    harness.run()
    assert harness.texts[0, 0] == [13, 14, 15, 16, EOS_TOKEN_ID]
    assert harness.ends[0, 0].reason is FinishReason.STOP
    assert harness.ends[0, 0].usage.completion_tokens == 5
    assert harness.num_live_blocks == 0


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("min_tokens", [0, 6])
def test_texts_are_those_without_drafts(n: int, min_tokens: int) -> None:
    harness = engine(script=repetitive_token, num_blocks=200)
    for i in range(2):
        harness.add(
            [*TEXT[i:], *TEXT], n=n, seed=i, max_tokens=60, min_tokens=min_tokens, ignore_eos=False
        )
    harness.run()
    assert harness.scheduler.view.stats().counters.accepted_tokens > 10


def test_drafts_are_written_into_blocks_of_ones_own() -> None:
    """Candidates share the tail of their prompt when they begin to guess."""
    harness = engine(block_size=16, num_blocks=8)
    harness.add(PROMPT, n=3, max_tokens=25)
    harness.run()
    assert harness.scheduler.view.stats().counters.cow_copies == 2
    assert harness.scheduler.view.stats().counters.accepted_tokens > 0


def test_drafts_take_no_block_that_is_not_there() -> None:
    harness = engine(num_blocks=5)
    harness.add(PROMPT, max_tokens=40)
    harness.run()
    assert len(harness.texts[0, 0]) == 10
    assert harness.scheduler.view.stats().counters.preemptions == 0


def test_drafts_push_nobody_out() -> None:
    without, with_drafts = (engine(num_blocks=9, num_speculative_tokens=n) for n in (0, 5))
    for harness in (without, with_drafts):
        harness.add(PROMPT, max_tokens=6)
        harness.add([1, *PROMPT], max_tokens=6)
        harness.run()
        assert harness.scheduler.view.stats().counters.preemptions == 0


def test_a_preempted_sequence_guesses_on() -> None:
    harness = engine()
    harness.add(PROMPT, max_tokens=40)
    harness.steps(3)
    harness.preempt()
    harness.run()
    assert len(harness.runner.plans) < 15


def test_prompts_get_at_least_half_of_the_room_beside_drafts() -> None:
    harness = engine(max_num_batched_tokens=8)
    harness.add(PROMPT, max_tokens=40)
    harness.steps(3)
    harness.add(list(range(100, 140)))
    plan = harness.step()
    assert [len(entry.token_ids) for entry in plan.scheduled] == [4, 4]


def test_many_that_decode_do_not_guess() -> None:
    harness = engine(max_num_seqs=MAX_ROWS, num_blocks=200, max_num_batched_tokens=200)
    for i in range(MAX_ROWS):
        harness.add([i, *PROMPT], max_tokens=12)
    harness.run()
    assert harness.scheduler.view.stats().counters.drafts == 0


def test_neither_beams_nor_embeddings_guess() -> None:
    harness = engine()
    harness.add(PROMPT, beams=BeamParams(width=2, length_penalty=1.0), max_tokens=8)
    harness.embed(PROMPT)
    harness.run()
    assert harness.scheduler.view.stats().counters.drafts == 0


class AnythingGoes:
    """A grammar, and the matcher of each of its sequences."""

    def matcher(self) -> "AnythingGoes":
        return self

    def allowed(self, output_token_ids: Sequence[int]) -> bytes:
        return b"\xff" * 32


def test_a_grammar_sees_every_token_before_the_next_is_computed() -> None:
    harness = engine()
    request = Request(
        0, PROMPT, SamplingParams(max_tokens=20, ignore_eos=True), 0.0, grammar=AnythingGoes()
    )
    harness.scheduler.add_request(request)
    harness.requests.append(request)
    harness.run()
    assert len(harness.texts[0, 0]) == 20
    assert harness.scheduler.view.stats().counters.drafts == 0


def test_tokens_behind_a_stop_string_do_not_count() -> None:
    harness = engine()
    request = harness.add(PROMPT, max_tokens=40)
    harness.steps(3)
    drawn = len(harness.texts[0, 0])
    harness.take(harness.scheduler.finish(request.sequences[0].seq_id, FinishReason.STOP, 2))
    assert harness.ends[0, 0].usage.completion_tokens == drawn - 2
    assert harness.scheduler.view.stats().counters.generated_tokens == drawn - 2
    assert harness.num_live_blocks == 0


# --- how many ------------------------------------------------------------------------------------


def guess(chance: float, length: int = 11) -> Guess:
    return Guess(list(range(length)), chance)


@pytest.mark.parametrize(
    ("chance", "count"), [(0.0, 0), (0.05, 0), (0.2, 1), (0.5, 3), (0.8, 5), (1.0, 11)]
)
def test_the_surer_the_longer(chance: float, count: int) -> None:
    assert choose_counts([guess(chance)], 11) == [count]


def test_the_surest_are_first() -> None:
    assert choose_counts([guess(0.9), guess(0.0), guess(0.5)], 11) == [3, 0, 0]
    assert choose_counts([guess(1.0, 2), guess(1.0, 2)], 11) == [2, 2]


def test_the_budget_holds() -> None:
    assert choose_counts([guess(1.0), guess(1.0)], 3) in ([1, 2], [2, 1])
    assert choose_counts([guess(1.0)], 0) == [0]


def test_nobody_guesses() -> None:
    assert choose_counts([Guess((), 0.0)] * 3, 9) == [0, 0, 0]


def test_a_step_costs_more_the_more_rows_it_has() -> None:
    costs = [step_cost(rows) for rows in range(1, MAX_ROWS + 1)]
    assert costs[0] == 1
    assert costs == sorted(costs)


def test_the_option_has_a_range() -> None:
    with pytest.raises(ConfigError, match="--num-speculative-tokens"):
        EngineConfig(model_path=Path("m"), model_name="m", num_speculative_tokens=12)
