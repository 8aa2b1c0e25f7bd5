"""Guesses from the text itself: where they come from, how long agreement counts, what experience teaches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.prompt_lookup import LONGEST_MATCH, PRIOR_SHARE, Guess, PromptLookup, num_equal


def guess(token_ids: list[int], limit: int = 4) -> Guess:
    return PromptLookup().guess(token_ids, limit)


def test_a_text_goes_on_as_it_did_before() -> None:
    assert guess([1, 2, 3, 4, 5, 6, 9, 1, 2]).token_ids == [3, 4, 5, 6]
    assert guess([1, 2, 3, 4, 5, 6, 9, 1, 2], limit=2).token_ids == [3, 4]


@pytest.mark.parametrize("token_ids", [[], [1], [1, 2], [1, 2, 3, 4], [1, 2, 3, 1, 4, 2]])
def test_without_a_pair_that_came_before_there_is_no_guess(token_ids: list[int]) -> None:
    assert guess(token_ids).token_ids == ()


def test_the_longest_agreement_counts_before_the_latest() -> None:
    assert guess([7, 1, 2, 30, 8, 1, 2, 40, 7, 1, 2]).token_ids[0] == 30


def test_of_equals_the_latest_counts() -> None:
    assert guess([7, 1, 2, 30, 8, 1, 2, 40, 9, 1, 2]).token_ids[0] == 40


def test_a_text_that_repeats_itself_is_guessed_to_go_on_repeating() -> None:
    assert guess([5, 5, 5], limit=4).token_ids == [5, 5, 5, 5]
    assert guess([1, 2, 3, 1, 2, 3, 1, 2], limit=7).token_ids == [3, 1, 2, 3, 1, 2, 3]


def test_the_chance_depends_on_how_long_the_agreement_is() -> None:
    text = list(range(20))
    for length in range(2, 11):
        chance = guess([*text, 90, *text[10 - length : 10]]).chance
        assert chance == PRIOR_SHARE[min(length, LONGEST_MATCH)]


def test_experience_counts_also_for_guesses_that_were_not_computed() -> None:
    lookup, text = PromptLookup(), [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2]
    first = lookup.guess(text, 3).chance
    text += [3]
    assert lookup.guess(text, 3).token_ids == [4, 5, 6]
    text += [4, 5, 99, 1, 2]
    better = lookup.guess(text, 3)
    assert better.chance > first, "the first guess, of the same length of agreement, came true"
    text += [50, 1, 2]
    assert lookup.guess(text, 3).chance < better.chance


def test_a_guess_counts_up_to_its_first_wrong_token() -> None:
    lookup, text = PromptLookup(), [1, 2, 3, 4, 5, 6, 9, 1, 2]
    lookup.guess(text, 4)
    lookup.guess([*text, 3, 4, 80, 6], 4)
    record = lookup._records[2]
    assert record.num_true == pytest.approx(0.9 * 0.4 + 2)
    assert record.num_tested == pytest.approx(0.9 * 2 + 3)


def test_asking_again_without_new_tokens_teaches_nothing() -> None:
    lookup, text = PromptLookup(), [1, 2, 3, 9, 1, 2]
    assert lookup.guess(text, 2) == lookup.guess(text, 2)
    assert lookup._records[2].num_tested == 2


def test_equal_tokens_are_counted_from_the_beginning() -> None:
    assert num_equal([1, 2, 3], [1, 2, 4]) == 2
    assert num_equal([1, 2, 3], [1, 2]) == 2
    assert num_equal([1], [2]) == 0
    assert num_equal([], [2]) == 0


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.data())
def test_growing_token_by_token_or_at_once_leads_to_the_same_place(
    token_ids: list[int], data: st.DataObject
) -> None:
    """The guess is the continuation of the longest agreement, by a search over all of the text."""
    lookup = PromptLookup()
    for end in sorted(data.draw(st.sets(st.integers(0, len(token_ids)), max_size=5))):
        lookup.guess(token_ids[:end], 3)
    found = lookup.guess(token_ids, 3)
    agreements = {
        place: next(
            (n for n in range(8) if n >= place or token_ids[place - 1 - n] != token_ids[-1 - n]), 8
        )
        for place in range(1, len(token_ids))
    }
    pairs = [place for place, length in agreements.items() if length >= 2]
    if not pairs:
        assert found.token_ids == ()
    elif len(pairs) <= 8:
        best = max(pairs, key=lambda place: (agreements[place], place))
        assert found.token_ids[0] == token_ids[best]
