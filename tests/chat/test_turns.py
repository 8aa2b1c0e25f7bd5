"""Titles, sampling layers and seeds."""

from itertools import islice

import pytest

from chat.turns import (
    MAX_TITLE_LENGTH,
    TITLE_LENGTH,
    as_frame_error,
    candidate_seeds,
    check_content,
    check_system_prompt,
    check_title,
    copy_titles,
    merge_sampling,
    title_of,
)
from engine.errors import RequestError
from engine.sampling_params import SamplingParams
from tests.e2e.hostile import TEXTS, one_each


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("Short one", "Short one"),
        ("  several\n\nlines\tof text ", "several lines of text"),
        ("word " * 30, "word word word word word word word word word…"),
        ("x" * 60, "x" * 48 + "…"),
        ("x" * 48, "x" * 48),
        ("天" * 60, "天" * 48 + "…"),
    ],
)
def test_a_title_is_the_first_words(content: str, title: str) -> None:
    assert title_of(content) == title


def test_later_layers_win_and_null_is_absent() -> None:
    merged = merge_sampling(
        {"a": 1, "max_tokens": 5}, None, {"a": None, "max_completion_tokens": 7}
    )
    assert merged == {"a": 1, "max_tokens": 7}


def test_a_layers_grammar_replaces_an_earlier_one_of_any_kind() -> None:
    merged = merge_sampling({"guided_json": {}, "top_k": 3}, {"guided_regex": "a"}, {"top_p": 0.5})
    assert merged == {"guided_regex": "a", "top_k": 3, "top_p": 0.5}


def test_seeds_count_up_and_wrap() -> None:
    assert candidate_seeds(SamplingParams(n=2, seed=2**64 - 1)) == (2**64 - 1, 0)
    assert candidate_seeds(SamplingParams(n=2, seed=-1)) == (2**64 - 1, 0)
    assert candidate_seeds(SamplingParams(n=3)) == (None, None, None)


@pytest.mark.parametrize(
    ("param", "expected"),
    [
        ("prompt", "content"),
        ("messages[2].content", "content"),
        ("n", "n"),
        (None, None),
        ("stop_token_ids[0]", "sampling.stop_token_ids[0]"),
        ("sampling.top_p", "sampling.top_p"),
    ],
)
def test_complaints_are_about_the_frame(param: str | None, expected: str | None) -> None:
    error = as_frame_error(RequestError("no", param=param, code="c"), "content")
    assert (error.param, error.code, error.message) == (expected, "c", "no")


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("# Plan\n\nfor **today** and `now`", "Plan for today and now"),
        ("- one\n- [two](https://example.com)\n![three](x.png)", "one two three"),
        ("2 * 3 * 4 = $24$ and 5 < 6", "2 * 3 * 4 = $24$ and 5 < 6"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("<b>bold</b>", "<b>bold</b>"),
        ("---", "---"),
        ("> quoted\n> words", "quoted words"),
    ],
)
def test_a_title_shows_what_markdown_shows(content: str, title: str) -> None:
    assert title_of(content) == title


def test_a_title_is_one_visible_line() -> None:
    assert check_title(" a\0b\x1b\tc\u200d ", "title") == "a b c\u200d"
    assert title_of("bell\x07 and \x1bescape") == "bell and escape"
    assert title_of("\x01\x02") == "…"
    with pytest.raises(RequestError, match="title must be a text of 1 to 200 characters"):
        check_title("\0\x7f", "title")


@pytest.mark.parametrize(
    ("text", "fault"), [("a\0b", "a NUL character"), ("a\udc00b", "half of a surrogate pair")]
)
def test_what_is_no_text_is_refused(text: str, fault: str) -> None:
    for check in (check_content, lambda text: check_system_prompt(text, "content")):
        with pytest.raises(RequestError, match=f"content holds {fault}") as refused:
            check(text)
        assert refused.value.param == "content"


def test_other_control_characters_are_kept() -> None:
    text = "\x01\x1b[31mred\x7f\x85"
    check_content(text)
    assert check_system_prompt(text, "system_prompt") == text


@one_each(TEXTS)
def test_any_text_gives_a_title_in_one_line(text: str) -> None:
    title = title_of(text)
    assert 1 <= len(title) <= TITLE_LENGTH + 1
    assert title == " ".join(title.split())


@pytest.mark.parametrize("title", ["Bread", "Copy of Bread", "Copy 2 of Bread", "Copy 12 of Bread"])
def test_copies_are_numbered_and_a_copys_copy_is_one_more_of_the_original(title: str) -> None:
    first = ["Copy of Bread", "Copy 2 of Bread", "Copy 3 of Bread"]
    assert list(islice(copy_titles(title), 3)) == first


@pytest.mark.parametrize("title", ["x" * 200, "Copy of ", "Copy 2 of ", "Copy  of x"])
def test_what_a_copy_may_be_called_is_a_title(title: str) -> None:
    titles = list(islice(copy_titles(title), 12))
    assert len(set(titles)) == 12
    assert all(len(each) <= MAX_TITLE_LENGTH for each in titles)
    assert titles[11].startswith("Copy 12 of ")
