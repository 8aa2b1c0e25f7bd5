"""The streaming renderer: any cut gives the same HTML, hostile text stays text, money stays prose."""

import time
from collections.abc import Iterable
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ui.maths import TAGS
from ui.render import StreamRenderer, render

PIECES = [
    "word", " ", " ", "\n", "\n", "\n\n", "\r\n", "\r", "# ", "## Title\n", "- ", "1. ", "2", ". ", "> ", "    ", "  ",
    "```", "```python\n", "~~~", "def f():\n    return 1\n", "|", "| a | b |\n", "|---|", "---", "===", "$$", "$", "x^2",
    "**", "*", "`", "~~", "[", "]", "(", ")", "[a]: http://b.c\n", "\\[", "\\]", "\\(", "\\)", "http://a.b", "https://c.d/e", "- [ ] ", "[x] ", "<b>", "&amp;", "\\", "é", "漢", "😀", "\0", "\t",
]  # fmt: skip

ANSWER = """# Paged attention

A *block* holds **16** tokens and costs $5 or $10, with $x^2$ in it.

| policy | blocks |
|:--|--:|
| paged | 101 |

1. one
2. two

   ```python
   def f():
       return 1
   ```

$$
\\sum_i x_i
$$

> quoted

```js
let a = "<script>";
"""

HOSTILE = [
    'https://a.b/"onmouseover=alert(1)',
    "https://a.b/'><img/src=x/onerror=alert(1)>",
    "https://a.b/<script>alert(1)</script>",
    "https://javascript:alert(1)@a.b/",
    "- [ ] <input type=image src=x onerror=alert(1)>",
    '- [x] [a](javascript:alert(1) "checked="checked"")',
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "<svg/onload=alert(1)>",
    "<iframe src=//evil></iframe>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](&#106;avascript:alert(1))",
    "[a](vbscript:x)",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "[a](file:///etc/passwd)",
    "![a](http://evil/x.png)",
    '[a](http://b "x\\" onmouseover=alert(1) y=")',
    '<http://a.b/"onmouseover=alert(1)>',
    "$<img src=x onerror=alert(1)>$",
    "$$\n</div><script>alert(1)</script>\n$$",
    "\\(<img src=x onerror=alert(1)>\\)",
    "\\[\n</div><script>alert(1)</script>\n\\]",
    '```"><script>alert(1)</script>\ncode\n```',
    "```html\n<script>alert(1)</script>\n```",
    "`<script>alert(1)</script>`",
    "| <script>a</script> |\n|---|\n| <img src=x> |",
    "<a href='javascript:alert(1)'>x</a>",
    "<style>*{display:none}</style>",
    "${alert(1)} {{alert(1)}}",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
]

ALLOWED_TAGS = TAGS | {
    "a", "blockquote", "br", "button", "code", "del", "div", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip


class Inspector(HTMLParser):
    """Collects the elements and attributes a browser would see."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def stream(text: str, cuts: Iterable[int]) -> tuple[str, StreamRenderer, str]:
    """What is frozen after updates at all `cuts` and the end, the renderer, and its last tail."""
    renderer = StreamRenderer()
    frozen = tail = ""
    for cut in [*cuts, len(text)]:
        html, tail = renderer.update(text[:cut])
        frozen += html
    return frozen, renderer, tail


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30), st.integers(1, 7))
@example(["1. word\n\n2. word"], 1)
@example(["$$\nx^2\n- word\n$$"], 1)
@example(["word\n$$\n# word\n$$"], 1)
@example(["word\r\n- word"], 1)
@example(["word\n|---|\n|---|word"], 1)
@example(["word\n$$\nx$$y"], 1)
@example(["\\[\nx\n- word\n\\]"], 1)
@example(["word\n\\[\n# word\n\\]"], 1)
@example(["word\n\\[\nx\n\\]word\n\n- word"], 1)
def test_any_cut_ends_in_the_full_render(pieces: list[str], step: int) -> None:
    text = "".join(pieces)
    frozen, renderer, _ = stream(text, range(0, len(text), step))
    assert renderer.final().startswith(frozen)
    assert renderer.final() == render(text)


def test_a_real_answer_cut_at_every_character_ends_in_the_full_render() -> None:
    frozen, renderer, _ = stream(ANSWER, range(len(ANSWER)))
    assert renderer.final() == render(ANSWER)
    assert "<h3>Paged attention</h3>" in frozen
    assert "<table>" in frozen
    assert "<munder>" in frozen


def test_finished_blocks_are_sent_once_and_the_tail_is_small() -> None:
    renderer = StreamRenderer()
    assert renderer.update("one\n\ntwo") == ("", "<p>one</p>\n<p>two</p>\n")
    assert renderer.update("one\n\ntwo\n\nthree\n") == (
        "<p>one</p>\n<p>two</p>\n",
        "<p>three</p>\n",
    )
    assert renderer.update("one\n\ntwo\n\nthree\nfour") == ("", "<p>three<br>\nfour</p>\n")


def test_of_an_open_fence_the_complete_lines_are_coloured() -> None:
    renderer = StreamRenderer()
    _, tail = renderer.update("```python\ndef f")
    assert "hl-" not in tail
    assert "def f" in tail
    _, tail = renderer.update("```python\ndef f():\n    return <")
    assert tail.count('class="hl-k"') == 1
    assert tail.endswith("\n    return &lt;</code></pre></div>\n")
    _, tail = renderer.update("```python\ndef f():\n    return <\n```")
    assert tail.count('class="hl-k"') == 2


def test_another_fence_has_its_own_colours() -> None:
    renderer = StreamRenderer()
    first = "```python\ndef f():\n"
    renderer.update(first)
    _, tail = renderer.update(f"{first}```\n\n```text\ndef f():\ndef g")
    assert tail.count("<pre") == 1
    assert "hl-" not in tail


def test_a_table_header_waits_for_its_separator() -> None:
    renderer = StreamRenderer()
    assert renderer.update("| a | b |")[1] == ""
    assert renderer.update("| a | b |\n|--")[1] == ""
    assert "<table>" in renderer.update("| a | b |\n|---|---|\n")[1]
    assert StreamRenderer().update("| a | b |\nplain")[1] == "<p>| a | b |<br>\nplain</p>\n"


@pytest.mark.parametrize(
    "prose", ["It costs $5 or $10.", "$5", "a $ b $ c", "US$5 and US$6", "costs 5$ or 6$"]
)
def test_money_stays_prose(prose: str) -> None:
    assert render(prose) == f"<p>{prose}</p>\n"


def test_maths_is_mathml_and_what_is_wrong_is_escaped_tex_in_an_element() -> None:
    assert render("so $a<b$ holds") == (
        '<p>so <math display="inline"><mrow><mi>a</mi><mo>&lt;</mo><mi>b</mi></mrow></math> holds</p>\n'
    )
    assert render("$$\nx^2\n$$") == (
        '<div class="pt-formula" role="region" aria-label="Formula" tabindex="0">'
        '<math display="block"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math></div>\n'
    )
    displayed = '<math display="block"><mrow><mi>x</mi></mrow></math>'
    assert render("so:\n$$x$$\nholds") == f"<p>so:<br>\n{displayed}<br>\nholds</p>\n"
    assert render("- so $$\nx\n$$") == f"<ul>\n<li>so {displayed}</li>\n</ul>\n"
    assert render("from $$5 to $$6") == "<p>from $$5 to $$6</p>\n"
    assert render(r"so $\nothing<b$") == (
        '<p>so <span class="pt-math" role="math">\\nothing&lt;b</span></p>\n'
    )
    assert 'role="math" tabindex="0">\\frac{x&amp;y</div>' in render("$$\n\\frac{x&y\n$$")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        (
            r"so \(x\) holds",
            '<p>so <math display="inline"><mrow><mi>x</mi></mrow></math> holds</p>',
        ),
        (r"so \[x\] holds", '<p>so <math display="block"><mrow><mi>x</mi></mrow></math> holds</p>'),
        (r"\(\nothing<b\)", '<p><span class="pt-math" role="math">\\(\\nothing&lt;b\\)</span></p>'),
        (r"\(open, \[open", "<p>(open, [open</p>"),
        (r"\\(x\\)", r"<p>\(x\)</p>"),
        (r"`\(x\)`", r"<p><code>\(x\)</code></p>"),
        (r"\(\)", "<p>()</p>"),
    ],
)
def test_brackets_hold_maths(text: str, html: str) -> None:
    assert render(text) == f"{html}\n"


@pytest.mark.parametrize(
    "text", ["\\[x\n- y\n= z\\]", "word\n\\[\nx - y = z\n\\]\nword", "- item\n  \\[\n  x\n  \\]"]
)
def test_a_block_between_brackets_is_one_formula(text: str) -> None:
    html = render(text)
    assert html.count('<div class="pt-formula"') == html.count("<math") == 1
    assert "\\" not in html


def test_a_block_between_brackets_that_cannot_be_read_keeps_them() -> None:
    assert 'tabindex="0">\\[\\frac{x&amp;y\\]</div>' in render("\\[\n\\frac{x&y\n\\]")
    assert render("\\[\nx\n\ny\n\\]").startswith("<p>[<br>")


def test_many_open_brackets_take_no_time() -> None:
    started = time.process_time()
    render("\\(" * 10_000 + "\\)")
    assert time.process_time() - started < 2


def test_a_long_formula_in_a_line_scrolls_by_itself() -> None:
    html = render(f"so ${'x+' * 40}x$ holds")
    assert '<span class="pt-formula" role="region" aria-label="Formula" tabindex="0"><math' in html


def test_spaces_in_formulas_are_small_or_none() -> None:
    assert '<mspace width="1em"></mspace>' in render(r"$a\quad b$")
    assert "999" not in render(r"$a\hspace{999em}b$")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_gives_only_harmless_elements(text: str) -> None:
    frozen, renderer, tail = stream(text + "\n\nend\n", range(len(text)))
    for html in (render(text), renderer.final(), frozen, tail):
        seen = Inspector(html)
        assert seen.tags <= ALLOWED_TAGS
        for name, value in seen.attributes:
            assert not name.startswith("on")
            assert name != "style"
            assert name != "href" or value.startswith(("http://", "https://", "mailto:"))


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_renders_to_allowed_elements_only(text: str) -> None:
    assert Inspector(render(text)).tags <= ALLOWED_TAGS


def test_links_open_elsewhere_and_headings_leave_h1_to_the_page() -> None:
    assert 'target="_blank"' in render("[a](https://b.c)")
    assert 'rel="noopener noreferrer nofollow"' in render("[a](https://b.c)")
    assert render("# One") == "<h3>One</h3>\n"
    assert render("###### Six") == "<h6>Six</h6>\n"


def test_code_and_tables_can_take_the_focus() -> None:
    assert '<pre tabindex="0">' in render("```\nx\n```")
    assert 'tabindex="0"' in render("|a|\n|-|\n|b|")


def test_a_column_keeps_its_side() -> None:
    assert '<td class="pt-right">1</td>' in render("|a|\n|-:|\n|1|")


def test_tasks_have_boxes_that_are_pictures() -> None:
    html = render("- [ ] wash\n- [x] **dry**\n- [y] iron\n\n[ ] no list")
    assert html == (
        '<ul>\n<li class="task-list-item"><span class="pt-task" role="img" aria-label="to do"></span> wash</li>\n'
        '<li class="task-list-item"><span class="pt-task pt-task-done" role="img" aria-label="done"></span>'
        " <strong>dry</strong></li>\n<li>[y] iron</li>\n</ul>\n<p>[ ] no list</p>\n"
    )


def test_bare_addresses_of_the_web_are_links_that_tell_nobody_where_they_were() -> None:
    rel = 'target="_blank" rel="noopener noreferrer nofollow"'
    assert render("(see https://a.b/c?d=1&e=2).") == (
        f'<p>(see <a href="https://a.b/c?d=1&amp;e=2" {rel}>https://a.b/c?d=1&amp;e=2</a>).</p>\n'
    )


@pytest.mark.parametrize(
    "text",
    ["app.py", "www.a.de", "a@b.de", "//a.de", "ftp://a.de", "mailto:a@b.de", "10.0.0.1", "`https://a.de`"],
)  # fmt: skip
def test_what_only_resembles_an_address_is_none(text: str) -> None:
    assert "<a" not in render(text)


def test_an_address_is_shown_as_it_was_written() -> None:
    assert ">https://xn--pple-43d.com/%41</a>" in render("https://xn--pple-43d.com/%41")
