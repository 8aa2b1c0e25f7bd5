"""TeX to MathML: what is drawn, and what is given back."""

import time

import pytest

from ui.maths import MAX_TEX_LENGTH, to_mathml


@pytest.mark.parametrize(
    ("tex", "element"),
    [
        (r"\frac{a}{b}", "<mfrac>"),
        (r"\sqrt[3]{x}", "<mroot>"),
        (r"\begin{pmatrix}a & b\\c & d\end{pmatrix}", "<mtable>"),
        (r"\begin{aligned}a &= b\\c &= d\end{aligned}", 'columnalign="right"'),
        (r"\sum_{i=1}^{n} i", "&#x02211;"),
        (r"\alpha \leq \beta", "&#x003B1;"),
        (r"f\colon \mathbb{R} \to \mathbb{R}", "ℝ"),
        (r"\left( \frac{1}{2} \right)", 'form="prefix"'),
        (r"\text{if } x > 0", "<mtext>"),
    ],
)
def test_usual_commands_are_drawn(tex: str, element: str) -> None:
    mathml = to_mathml(tex, block=False)
    assert mathml is not None
    assert element in mathml or element in mathml.replace("&#x0211D;", "ℝ")


@pytest.mark.parametrize(
    "tex",
    [
        "",
        r"\frac{",
        r"\unheardof{x}",
        r"x_1_2",
        r"\text{<img src=x onerror=1>}",
        r"\text{<b>x</b>}",
        r"\text{</math><script>1</script>}",
        r"\text{a & b}",
        "x" * (MAX_TEX_LENGTH + 1),
        "{" * 41 + "x" + "}" * 41,
    ],
)
def test_what_cannot_be_drawn_is_given_back(tex: str) -> None:
    assert to_mathml(tex, block=True) is None


def test_a_display_is_a_block() -> None:
    assert 'display="block"' in (to_mathml("x", block=True) or "")
    assert 'display="inline"' in (to_mathml("x", block=False) or "")


@pytest.mark.parametrize(
    "piece", ["x_", "{", r"\frac", r"\left(", "^", r"\\", "&", r"\begin{matrix}", "a "]
)
def test_no_input_takes_long(piece: str) -> None:
    text = (piece * MAX_TEX_LENGTH)[:MAX_TEX_LENGTH]
    started = time.process_time()
    to_mathml(text, block=True)
    assert time.process_time() - started < 2
