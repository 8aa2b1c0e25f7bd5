"""Where searched words stand in a text."""

import pytest

from chat.snippets import LENGTH, snippet
from storage.search import words_of
from tests.e2e.hostile import TEXTS, one_each


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("bread of rye", ["bread"], ("", "bread", " of rye")),
        ("Bread of BREAD", ["bread"], ("", "Bread", " of ", "BREAD", "")),
        ("the other", ["the", "other"], ("", "the", " ", "other", "")),
        ("a.b (c", ["."], ("a", ".", "b (c")),
        ("two\n\n lines", ["lines"], ("two ", "lines", "")),
        ("nothing here", ["STRASSE"], ("nothing here",)),
        ("", ["x"], ("",)),
    ],
)
def test_hits_alternate_with_what_is_around_them(
    text: str, words: list[str], expected: tuple[str, ...]
) -> None:
    assert snippet(text, words) == expected


def test_a_long_text_is_cut_around_its_first_hit_at_words() -> None:
    parts = snippet("before " * 50 + "needle " + "after " * 50, ["needle"])
    assert parts[0] == "…" + "before " * 5
    assert parts[1] == "needle"
    assert parts[2].endswith("…")
    assert len("".join(parts)) <= LENGTH + 2


def test_directions_do_not_reach_out_of_the_line() -> None:
    assert snippet("\u202ereversed needle", ["needle"]) == ("reversed ", "needle", "")


@one_each(TEXTS)
def test_any_text_gives_one_short_line(text: str) -> None:
    for words in (words_of(text)[:3], ["window"], ["a"]):
        parts = snippet(text, words or ["x"])
        line = "".join(parts)
        assert len(parts) % 2 == 1
        assert len(line) <= LENGTH + 2
        assert len(line.splitlines()) <= 1
