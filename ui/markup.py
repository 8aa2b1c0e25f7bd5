r"""Markdown to safe HTML: CommonMark with tables, strikethrough, task lists, addresses as links, and maths between dollars, `\(` and `\)`, or `\[` and `\]`.

Raw HTML in the source stays text, and whatever leaves this file has passed an allow-list (nh3), so a model's words
can neither run a script nor fetch an image. Headings are shifted by two levels, because the page owns h1 and h2.
Maths becomes MathML (ui/maths.py), else stays TeX, escaped, in elements of class `pt-math`. Code is coloured by pygments classes with the prefix `hl-`.
Everything that may scroll sideways can take the focus.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_core import StateCore, linkify
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.tasklists import tasklists_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from ui import maths
from ui.bracket_maths import CLOSINGS, bracket_maths

MAX_COLOURED_CHARS = 20_000
LONG_FORMULA_CHARS = 60
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,30}")
_TAGS = {
    *maths.TAGS, "a", "blockquote", "br", "button", "code", "del", "div", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_ATTRIBUTES = {
    **maths.ATTRIBUTES,
    "a": {"href", "title"},
    "button": {"class", "type", "aria-label"},
    "code": {"class"},
    "div": {"class", "tabindex", "role", "aria-label"},
    "li": {"class"},
    "ol": {"start"},
    "pre": {"tabindex"},
    "span": {"class", "role", "aria-label", "tabindex"},
    "td": {"class"},
    "th": {"class"},
}
_FORMULA = 'class="pt-formula" role="region" aria-label="Formula" tabindex="0"'
_SMALL_SPACE = re.compile(r"-?\d?(\.\d+)?em")
_formatter = HtmlFormatter(nowrap=True, classprefix="hl-")


def parse(text: str) -> list[Token]:
    """Tokens of `text`, whose lines end in newlines only (see `normalise`)."""
    return _markdown.parse(text)


def render_tokens(tokens: Sequence[Token]) -> str:
    """Sanitised HTML of whole top-level blocks."""
    raw = _markdown.renderer.render(tokens, _markdown.options, {})
    return nh3.clean(
        raw,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
        attribute_filter=_kept_attribute,
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )


def _kept_attribute(tag: str, name: str, value: str) -> str | None:
    """A formula must not push others away."""
    is_space = tag == "mspace" and name == "width"
    return None if is_space and not _SMALL_SPACE.fullmatch(value) else value


def normalise(text: str) -> str:
    """`text` with newlines only. A carriage return at the end waits for what follows it."""
    return text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def coloured(code: str, language: str) -> str:
    """HTML of `code`; plain when the language is unknown or the code very long."""
    if len(code) > MAX_COLOURED_CHARS or not language:
        return escapeHtml(code)
    try:
        return highlight(code, get_lexer_by_name(language, stripnl=False), _formatter)
    except ClassNotFound:
        return escapeHtml(code)


_coloured = lru_cache(maxsize=256)(coloured)


def _render_fence(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    words = token.info.split()
    language = words[0] if words and _LANGUAGE.fullmatch(words[0]) else ""
    colour: Callable[[str, str], str] = token.meta.get("colour", _coloured)
    code = colour(token.content, language.lower())
    return (
        f'<div class="pt-code"><div class="pt-code-head"><span>{escapeHtml(language) or "code"}</span>'
        '<button type="button" class="pt-copy-code" aria-label="Copy code">Copy</button></div>'
        f'<pre tabindex="0"><code class="hl">{code}</code></pre></div>\n'
    )


_DISPLAYED = ("\\[", "$$")
"""What opens a formula that stands on a line of its own, wherever it was written."""


def _source(token: Token) -> str:
    """What cannot be drawn: TeX, and the brackets around it, which may have been meant as such."""
    tex = token.content.strip()
    return f"{token.markup}{tex}{CLOSINGS[token.markup]}" if token.markup in CLOSINGS else tex


def _render_math_inline(
    self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    token = tokens[index]
    tex = token.content.strip()
    mathml = maths.to_mathml(tex, block=token.markup in _DISPLAYED)
    if mathml is None:
        return f'<span class="pt-math" role="math">{escapeHtml(_source(token))}</span>'
    return mathml if len(tex) < LONG_FORMULA_CHARS else f"<span {_FORMULA}>{mathml}</span>"


def _render_math_block(
    self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    mathml = maths.to_mathml(tokens[index].content.strip(), block=True)
    if mathml is None:
        source = escapeHtml(_source(tokens[index]))
        return f'<div class="pt-math pt-math-block" role="math" tabindex="0">{source}</div>\n'
    return f"<div {_FORMULA}>{mathml}</div>\n"


def _render_table_open(
    self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    return '<div class="pt-table" role="region" aria-label="Table" tabindex="0"><table>\n'


def _render_table_close(
    self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    return "</table></div>\n"


def _render_cell_open(
    self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    token = tokens[index]
    side = str(token.attrGet("style") or "").removeprefix("text-align:")
    return f'<{token.tag} class="pt-{side}">' if side else f"<{token.tag}>"


def _render_heading(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    level = min(int(token.tag[1]) + 2, 6)
    return f"<h{level}>" if token.nesting == 1 else f"</h{level}>\n"


def _render_task(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """The box of a task: a picture, since nobody can tick it. As raw HTML is off, only the plugin makes such tokens."""
    done = 'checked="checked"' in tokens[index].content
    name, kind = ("done", "pt-task pt-task-done") if done else ("to do", "pt-task")
    return f'<span class="{kind}" role="img" aria-label="{name}"></span>'


def _as_written(link: str) -> str:
    return link


def _link_addresses(state: StateCore) -> None:
    """Most text has no address, and looking for one costs as much as parsing it."""
    if "://" in state.src:
        linkify(state)


def _build() -> MarkdownIt:
    """Reference definitions are off: a late one would change text that has been shown. Images are off: they are links.

    Of bare addresses only those that begin with http:// or https:// become links: a file's name is none. They are shown
    as they were written, so that none looks like another.
    """
    md = MarkdownIt("commonmark", {"html": False, "breaks": True, "linkify": True})
    md.enable(["table", "strikethrough", "linkify"]).disable(["reference", "image"])
    assert md.linkify is not None, "linkify-it-py is installed"
    md.linkify.set({"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False})
    for schema in ("ftp:", "//", "mailto:"):
        md.linkify.add(schema, None)
    md.core.ruler.at("linkify", _link_addresses)
    md.normalizeLinkText = _as_written
    md.use(tasklists_plugin)
    md.use(
        dollarmath_plugin,
        allow_labels=False,
        allow_space=False,
        allow_digits=False,
        allow_blank_lines=False,
        double_inline=True,
    )
    md.use(bracket_maths)
    md.add_render_rule("html_inline", _render_task)
    md.add_render_rule("fence", _render_fence)
    md.add_render_rule("code_block", _render_fence)
    md.add_render_rule("math_inline", _render_math_inline)
    md.add_render_rule("math_inline_double", _render_math_inline)
    md.add_render_rule("math_block", _render_math_block)
    md.add_render_rule("table_open", _render_table_open)
    md.add_render_rule("table_close", _render_table_close)
    md.add_render_rule("td_open", _render_cell_open)
    md.add_render_rule("th_open", _render_cell_open)
    md.add_render_rule("heading_open", _render_heading)
    md.add_render_rule("heading_close", _render_heading)
    return md


_markdown = _build()
