"""Colours for code whose fence is still open.

To colour all of it at each update would cost more than everything else, so the lines that are complete are coloured every
few lines only: after each of the first ones, then after a quarter more, at most eight, and no more once the code is long.
What came since stands below in plain letters. When the fence closes all of it is coloured as a whole.
"""

from collections.abc import Callable

from markdown_it.common.utils import escapeHtml

MAX_CHARS = 3_000
MAX_PLAIN_LINES = 8


class OpenCode:
    """The code of one growing fence, or of several one after the other; `colour(code, language)` makes the HTML."""

    def __init__(self, colour: Callable[[str, str], str]) -> None:
        self._colour = colour
        self._language = self._code = self._html = ""

    def html(self, code: str, language: str) -> str:
        """The code so far: coloured up to some line, escaped from there on."""
        if language != self._language or not code.startswith(self._code):
            self._language, self._code, self._html = language, "", ""
        complete = code[: code.rfind("\n") + 1]
        if len(complete) <= MAX_CHARS and self._is_due(complete):
            self._code, self._html = complete, self._colour(complete, language)
        return self._html + escapeHtml(code[len(self._code) :])

    def _is_due(self, complete: str) -> bool:
        done = self._code.count("\n")
        return complete.count("\n") - done >= max(1, min(done // 4, MAX_PLAIN_LINES))
