"""Code in an open fence: when it is coloured anew, and that nothing of it is lost or doubled."""

from hypothesis import given
from hypothesis import strategies as st
from markdown_it.common.utils import escapeHtml

from ui.open_code import MAX_CHARS, OpenCode


class Colours:
    """Marks what is coloured, and notes how many lines that are."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def colour(self, code: str, language: str) -> str:
        self.calls.append(code.count("\n"))
        return f"<{language}>{escapeHtml(code)}</{language}>"


def grow(code: OpenCode, num_lines: int, line: str = "x = 1\n") -> str:
    """Line by line; the last HTML."""
    return [code.html(line * count, "python") for count in range(1, num_lines + 1)][-1]


def test_first_lines_are_coloured_at_once_and_later_ones_in_pieces() -> None:
    colours = Colours()
    html = grow(OpenCode(colours.colour), 50)
    assert colours.calls == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 41, 49]
    assert html == "<python>" + "x = 1\n" * 49 + "</python>x = 1\n"


def test_long_code_keeps_the_colours_that_it_has() -> None:
    colours = Colours()
    line = "x" * 99 + "\n"
    html = grow(OpenCode(colours.colour), MAX_CHARS // 100 + 20, line)
    assert max(colours.calls) <= MAX_CHARS // 100
    assert html.endswith("</python>" + line * (MAX_CHARS // 100 + 20 - max(colours.calls)))


def test_a_line_that_is_not_complete_is_escaped() -> None:
    colours = Colours()
    code = OpenCode(colours.colour)
    assert code.html("a <", "c") == "a &lt;"
    assert code.html("a < b\nc", "c") == "<c>a &lt; b\n</c>c"
    assert colours.calls == [1]


def test_another_language_or_another_code_begins_anew() -> None:
    code = OpenCode(Colours().colour)
    assert code.html("a\n", "c") == "<c>a\n</c>"
    assert code.html("a\n", "go") == "<go>a\n</go>"
    assert code.html("b", "go") == "b"


@given(st.lists(st.sampled_from(["a", "<", "\n", "b\n", "&\n\n"]), max_size=60))
def test_the_text_is_that_of_the_code_at_every_moment(pieces: list[str]) -> None:
    code = OpenCode(lambda text, language: escapeHtml(text))
    for count in range(len(pieces) + 1):
        text = "".join(pieces[:count])
        assert code.html(text, "c") == escapeHtml(text)
