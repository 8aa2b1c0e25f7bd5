"""Which rows have logits, who draws from them, and where what was drawn belongs."""

from engine.draws import find_draws
from engine.outputs import SampledToken, SampleRequest, ScheduledSequence
from engine.sampling_params import SamplingParams


def scheduled(
    seq_id: int, num_tokens: int, *samples: int, num_drafts: int = 0
) -> ScheduledSequence:
    requests = tuple(SampleRequest(s, SamplingParams(), None, [], []) for s in samples)
    return ScheduledSequence(
        seq_id, list(range(num_tokens)), 0, [0], requests, num_drafts=num_drafts
    )


def test_the_last_token_of_each_sequence_that_samples_has_logits() -> None:
    draws = find_draws([scheduled(0, 1, 0), scheduled(1, 4), scheduled(2, 3, 2)])
    assert (draws.rows, draws.sources, draws.has_own_rows) == ([0, 7], [0, 1], True)


def test_candidates_of_one_prompt_draw_from_one_row() -> None:
    draws = find_draws([scheduled(0, 1, 0), scheduled(1, 4, 1, 2, 3)])
    assert (draws.rows, draws.sources, draws.has_own_rows) == ([0, 4], [0, 1, 1, 1], False)


def test_drafts_have_rows_of_their_own() -> None:
    draws = find_draws([scheduled(0, 3, 0, 0, 0, num_drafts=2), scheduled(1, 2, 1, 2)])
    assert (draws.rows, draws.sources) == ([0, 1, 2, 4], [0, 1, 2, 3, 3])
    tokens = [SampledToken(token_id) for token_id in (10, 11, 12, 13, 14)]
    output = draws.output(tokens, {})
    assert output.samples == {0: tokens[0], 1: tokens[3], 2: tokens[4]}
    assert output.behind_drafts == {0: tokens[1:3]}


def test_a_step_without_draws() -> None:
    draws = find_draws([scheduled(0, 5)])
    assert (draws.rows, draws.requests) == ([], [])
    assert draws.output([], {0: [1.0]}).state_sums == {0: [1.0]}
