"""Streaming Markdown: text that grows becomes HTML that is mostly final.

`StreamRenderer` parses only what is not yet frozen. A top-level block is frozen once a later block has begun on a
complete line: nothing that comes after can change it. The rest is the tail, shown as it stands and replaced by the
next update: an open code fence with colours up to some line (ui/open_code.py), a table's header only when its separator
has come. For every way to cut a text, the frozen parts and `final()`'s rest make exactly
`render(text)`.
"""

import re
from collections.abc import Sequence

from markdown_it.token import Token

from ui.markup import coloured, normalise, parse, render_tokens
from ui.open_code import OpenCode

_LIST_OR_QUOTE_PREFIX = " \t>-*+0123456789.)"
_TABLE_SEPARATOR_BEGUN = re.compile(r"[\s|:-]*")


def render(text: str) -> str:
    """Sanitised HTML of a whole text."""
    return render_tokens(parse(normalise(text)))


class StreamRenderer:
    """HTML of one growing text; each update must extend the last one's text."""

    def __init__(self) -> None:
        self._frozen: list[str] = []
        self._offset = 0
        self._rest = ""
        self._open_code = OpenCode(coloured)

    def update(self, text: str) -> tuple[str, str]:
        """The HTML to append to what is frozen, and the tail that replaces the last tail."""
        self._rest = normalise(text)[self._offset :]
        blocks = _split_blocks(parse(self._rest))
        lines = self._rest.split("\n")
        count = _count_finished(blocks, lines)
        html = self._freeze(blocks, lines, count) if count else ""
        return html, self._render_tail(blocks[count:], lines)

    def final(self) -> str:
        """The HTML of the last update's whole text, with nothing held back."""
        return "".join(self._frozen) + render_tokens(parse(self._rest))

    def render(self, text: str) -> str:
        """The HTML of any whole text; does not touch the stream."""
        return render(text)

    def _render_tail(self, blocks: list[list[Token]], lines: list[str]) -> str:
        if not blocks:
            return ""
        if (fence := _open_fence(blocks[-1], lines)) is not None:
            fence.meta["colour"] = self._open_code.html
        if _is_table_begun(blocks[-1], lines):
            blocks = blocks[:-1]
        return render_tokens([token for block in blocks for token in block])

    def _freeze(self, blocks: list[list[Token]], lines: list[str], count: int) -> str:
        html = render_tokens([token for block in blocks[:count] for token in block])
        cut = sum(len(line) + 1 for line in lines[: _start(blocks[count])])
        self._frozen.append(html)
        self._offset += cut
        self._rest = self._rest[cut:]
        return html


def _split_blocks(tokens: Sequence[Token]) -> list[list[Token]]:
    """The tokens of each top-level block."""
    blocks: list[list[Token]] = []
    depth = 0
    for token in tokens:
        if depth == 0:
            blocks.append([])
        blocks[-1].append(token)
        depth += token.nesting
    return blocks


def _start(block: list[Token]) -> int:
    assert block[0].map is not None, "a top-level block has a line range"
    return block[0].map[0]


def _deciding_line(block: list[Token]) -> int:
    """The line that, once complete, makes this block a block: a table needs its separator, maths its last."""
    assert block[0].map is not None, "a top-level block has a line range"
    start, end = block[0].map
    return {"table_open": start + 1, "math_block": end - 1}.get(block[0].type, start)


def _count_finished(blocks: list[list[Token]], lines: list[str]) -> int:
    """How many leading blocks can no longer change: the next one is decided, and no `$$` or `\\[` before it is open."""
    last_complete = len(lines) - 2
    limit = _open_math_line(blocks, lines)
    finished = 0
    for following in range(1, len(blocks)):
        if _deciding_line(blocks[following]) > last_complete or _start(blocks[following]) > limit:
            break
        finished = following
    return finished


def _open_math_line(blocks: list[list[Token]], lines: list[str]) -> int:
    """The first line of a `$$` or `\\[` that a later line may still close, else beyond the end. A blank line ends the wait."""
    for block in blocks:
        if block[0].type in ("math_block", "fence", "code_block"):
            continue
        assert block[0].map is not None, "a top-level block has a line range"
        for number in range(*block[0].map):
            begins = lines[number].lstrip(_LIST_OR_QUOTE_PREFIX).startswith(("$$", "\\["))
            if begins and all(line.strip() for line in lines[number + 1 : -1]):
                return number
    return len(lines)


def _open_fence(block: list[Token], lines: list[str]) -> Token | None:
    """The last fence, nested or not, if it has not been closed."""
    fences = [token for token in block if token.type == "fence" and token.map]
    for token in fences[-1:]:
        assert token.map is not None, "a fence has a line range"
        last = lines[min(token.map[1], len(lines)) - 1].strip(" \t>")
        closed = last.startswith(token.markup) and not last.strip(token.markup[0])
        if not (closed and token.map[1] - token.map[0] > 1):
            return token
    return None


def _is_table_begun(block: list[Token], lines: list[str]) -> bool:
    """Whether the block is a header line, alone or with a separator that is not complete."""
    if block[0].type != "paragraph_open" or block[0].map is None:
        return False
    first, *others = lines[block[0].map[0] : block[0].map[1]]
    return (
        first.lstrip().startswith("|")
        and len(others) <= 1
        and all(_TABLE_SEPARATOR_BEGUN.fullmatch(line) for line in others)
    )
