r"""Maths between `\(` and `\)`, or `\[` and `\]`: rules for markdown-it-py, beside its plugin for dollars.

In a line, both are inline and end in their paragraph. Where `\[` begins a line and `\]` ends one, what is between is a
block, whatever its lines look like; a blank line ends it, so that text that streams is soon decided. The tokens are those
of dollar maths, with the opening as `markup`. What has no end is left to the usual rules.
"""

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

from ui.maths import MAX_TEX_LENGTH

CLOSINGS = {"\\(": "\\)", "\\[": "\\]"}
# A backslash takes the next character with it, so `\\]` is a new line and a bracket.
_BODIES = {
    "\\(": re.compile(rf"((?:[^\\]|\\[^)]){{1,{MAX_TEX_LENGTH}}})\\\)", re.DOTALL),
    "\\[": re.compile(rf"((?:[^\\]|\\[^\]]){{1,{MAX_TEX_LENGTH}}})\\\]", re.DOTALL),
}
_END_OF_LINE = re.compile(r"(?:[^\\]|\\[^\]])*\\\]")


def bracket_maths(md: MarkdownIt) -> None:
    """Add the rules."""
    md.inline.ruler.before("escape", "math_bracket", _inline)
    interrupted = ["paragraph", "reference", "blockquote", "list"]
    md.block.ruler.before("fence", "math_bracket", _block, {"alt": interrupted})


def _inline(state: StateInline, silent: bool) -> bool:
    opening = state.src[state.pos : state.pos + 2]
    if opening not in CLOSINGS or CLOSINGS[opening] not in state.src[state.pos : state.posMax]:
        return False
    found = _BODIES[opening].match(state.src, state.pos + 2, state.posMax)
    if not found or not found[1].strip():
        return False
    if not silent:
        token = state.push("math_inline", "math", 0)
        token.content, token.markup = found[1], opening
    state.pos = found.end()
    return True


def _block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    if state.is_code_block(start_line) or not _line(state, start_line).startswith("\\["):
        return False
    last = _closing_line(state, start_line, end_line)
    if last is None:
        return False
    if silent:
        return True
    lines = [_line(state, number) for number in range(start_line, last + 1)]
    token = state.push("math_block", "math", 0)
    token.block = True
    token.content = "\n".join(lines).strip()[2:-2]
    token.markup = "\\["
    token.map = [start_line, last + 1]
    state.line = last + 1
    return True


def _closing_line(state: StateBlock, start_line: int, end_line: int) -> int | None:
    """The line that `\\]` ends, unless there is a blank one before it, or text behind it."""
    for number in range(start_line, end_line):
        line = _line(state, number).rstrip()
        if not line or state.sCount[number] < state.blkIndent:
            return None
        found = _END_OF_LINE.match(line, 2 if number == start_line else 0)
        if found:
            return number if found.end() == len(line) else None
    return None


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]
