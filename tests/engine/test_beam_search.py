"""The rules of a search, step by step on distributions made by hand. Token 9 is an end token."""

import math
from typing import Any

import pytest

from engine.beam_params import BeamParams
from engine.beam_search import BeamSearch, Continuation
from engine.outputs import SampledToken, TokenLogprob
from engine.sampling_params import SamplingParams

END = 9


def make_search(
    width: int = 2, max_length: int = 10, logprobs: int | None = None, **changes: Any
) -> BeamSearch:
    params = SamplingParams(logprobs=logprobs, beams=BeamParams(width=width, **changes))
    return BeamSearch(params, frozenset({END}), max_length)


def best(*entries: tuple[int, float]) -> SampledToken:
    """What a beam may go on with: (token, logprob), best first."""
    top = [TokenLogprob(token, logprob, rank) for rank, (token, logprob) in enumerate(entries, 1)]
    return SampledToken(top[0].token_id, top[0], tuple(top))


def answers(search: BeamSearch) -> list[tuple[list[int], float]]:
    return [
        ([token.token_id for token in h.tokens], round(h.cumulative_logprob, 9))
        for h in search.hypotheses
    ]


def test_first_step_fills_the_slots_from_the_one_beam() -> None:
    search = make_search(width=3)
    assert search.slots == [0]
    assert search.num_candidates == 4
    continuations = search.advance({0: best((5, -0.1), (6, -1.0), (7, -2.0), (8, -3.0))})
    assert continuations == [
        Continuation(0, 0, 5),
        Continuation(1, 0, 6),
        Continuation(2, 0, 7),
    ]
    assert search.slots == [0, 1, 2]


def test_the_best_continuation_stays_and_others_take_the_slots_of_dead_beams() -> None:
    search = make_search(width=3)
    search.advance({0: best((5, -0.1), (6, -1.0), (7, -2.0))})
    drawn = {
        0: best((1, -9.0), (2, -9.5), (3, -9.9)),
        1: best((1, -0.5), (2, -0.6), (3, -0.7)),
        2: best((1, -0.1), (2, -8.0), (3, -9.0)),
    }
    assert search.advance(drawn) == [
        Continuation(1, 1, 1),
        Continuation(0, 1, 2),
        Continuation(2, 1, 3),
    ]
    # The three stand in order of their logprob now, whatever their slots: of equal ways the better beam's comes first.
    assert search.slots == [1, 0, 2]


def test_end_tokens_count_only_among_the_best_and_never_go_on() -> None:
    search = make_search(width=2)
    first = search.advance({0: best((5, -0.1), (6, -0.2), (END, -0.3))})
    assert [c.token_id for c in first] == [5, 6]
    assert search.hypotheses == []
    second = search.advance(
        {0: best((END, -0.1), (1, -1.0), (2, -2.0)), 1: best((3, -1.0), (4, -3.0), (END, -4.0))}
    )
    assert [(c.parent, c.token_id) for c in second] == [(0, 1), (1, 3)]
    assert answers(search) == [([5, END], -0.2)]
    assert search.hypotheses[0].is_stopped


def test_scores_are_divided_by_the_generated_length() -> None:
    for penalty, order in ((0.0, [1, 2]), (1.0, [2, 1])):
        search = make_search(width=2, length_penalty=penalty, max_length=2)
        search.advance({0: best((END, -1.0), (5, -0.6), (6, -3.0))})
        search.advance(
            {0: best((END, -0.5), (1, -8.0), (2, -9.0)), 1: best((1, -9.0), (2, -9.5), (3, -9.9))}
        )
        assert [len(h.tokens) for h in search.hypotheses] == order
        assert [h.score for h in search.hypotheses] == [
            pytest.approx(h.cumulative_logprob / len(h.tokens) ** penalty)
            for h in search.hypotheses
        ]


def test_the_limit_makes_the_best_of_all_ways_hypotheses() -> None:
    search = make_search(width=2, max_length=1)
    assert search.advance({0: best((5, -0.1), (END, -0.2), (6, -0.3))}) == []
    assert search.is_done
    assert answers(search) == [([5], -0.1), ([END], -0.2)]
    assert [h.is_stopped for h in search.hypotheses] == [False, True]


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "best_running", "is_done"),
    [
        (True, 1.0, -1.4, True),
        (False, 1.0, -2.3, False),
        (False, 1.0, -2.5, True),
        (False, 0.0, -1.4, False),
        (False, 0.0, -1.6, True),
        (False, -1.0, -1.4, False),
        (False, -1.0, -1.6, True),
        ("never", 1.0, -23.9, False),
        ("never", 1.0, -24.1, True),
        ("never", 0.0, -1.4, False),
        ("never", 0.0, -1.6, True),
        ("never", -1.0, -1.4, False),
        ("never", -1.0, -1.6, True),
    ],
)
def test_when_a_search_with_enough_hypotheses_ends(
    early_stopping: Any, length_penalty: float, best_running: float, is_done: bool
) -> None:
    """Hypotheses are one token with logprob -1.2 and two tokens with -1.5; a running beam has two tokens, of 20 at most."""
    search = make_search(
        max_length=20, early_stopping=early_stopping, length_penalty=length_penalty
    )
    search.advance({0: best((1, -0.5), (END, -1.2), (2, -1.3))})
    drawn = sorted([(END, -1.0), (3, best_running + 0.5)], key=lambda entry: -entry[1])
    search.advance({0: best(*drawn, (4, -50.0)), 1: best((5, -60.0), (6, -61.0), (7, -62.0))})
    assert sorted(len(h.tokens) for h in search.hypotheses) == [1, 2]
    assert search.is_done is is_done


def test_a_width_of_one_is_greedy() -> None:
    search = make_search(width=1, max_length=5)
    search.advance({0: best((5, -0.1), (6, -0.2))})
    search.advance({0: best((END, -0.5), (6, -0.6))})
    assert search.is_done
    assert answers(search) == [([5, END], -0.6)]


def test_a_vocabulary_too_small_for_all_beams_ends_the_search() -> None:
    search = make_search(width=3)
    assert search.advance({0: best((5, -0.1), (6, -0.2), (END, -0.3))}) == []
    assert search.is_done
    assert answers(search) == [([5], -0.1), ([6], -0.2), ([END], -0.3)]


def test_conclude_ranks_running_beams_with_the_finished() -> None:
    search = make_search(width=2)
    search.advance({0: best((5, -0.1), (END, -0.2), (6, -0.3))})
    search.conclude()
    assert answers(search) == [([5], -0.1), ([END], -0.2)]


def test_logprobs_are_kept_when_asked_for() -> None:
    search = make_search(width=2, logprobs=1, max_length=1)
    drawn = best((5, -0.1), (6, -0.2), (7, -0.3))
    search.advance({0: drawn})
    assert [h.tokens[0].logprob for h in search.hypotheses] == [*drawn.top_logprobs[:2]]
    assert {h.tokens[0].top_logprobs for h in search.hypotheses} == {drawn.top_logprobs[:1]}
    plain = make_search(width=2, max_length=1)
    plain.advance({0: drawn})
    assert plain.hypotheses[0].tokens == (SampledToken(5),)
    assert math.isclose(plain.hypotheses[0].cumulative_logprob, -0.1)
