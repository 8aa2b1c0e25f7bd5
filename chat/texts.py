"""What counts as text, here and in the database.

Half of a surrogate pair and NUL are no text: no database keeps the first, and for SQLite's functions and other databases a text
ends at the second, so it would be stored and half of it never found. Who writes them is told; where nobody can be, in what a
model draws and in files, U+FFFD stands for NUL. Other control characters are kept, but a title is one visible line.
"""

import re

from engine.errors import RequestError

NUL, REPLACEMENT = "\0", "\ufffd"
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")


def check_text(text: str, param: str) -> None:
    """Raise RequestError for what is no text."""
    check_pairs(text, param)
    if NUL in text:
        raise RequestError(f"{param} holds a NUL character (U+0000)", param=param)


def check_pairs(text: str, param: str) -> None:
    """Raise RequestError for half of a surrogate pair."""
    if _HALF_PAIR.search(text):
        raise RequestError(f"{param} holds half of a surrogate pair", param=param)


def without_nul(text: str) -> str:
    """The text with U+FFFD for NUL; places in it stay."""
    return text.replace(NUL, REPLACEMENT)


def one_line(text: str) -> str:
    """The text in one line: control characters are spaces, and spaces in a row are one."""
    return " ".join(_CONTROL.sub(" ", text).split())
