"""TeX to MathML, which browsers draw by themselves; what cannot be read is given back as None.

latex2mathml knows the commands. It copies text as it stands, so its result is used only if it is XML that has nothing but
MathML elements; attributes are left to the allow-list of ui/markup.py.
"""

import logging
import re
from functools import lru_cache
from xml.etree import ElementTree

from latex2mathml.converter import convert

logger = logging.getLogger(__name__)

MAX_TEX_LENGTH = 2_000
MAX_NESTING = 40
TAGS = frozenset(
    {
        "math", "menclose", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom", "mprescripts", "mroot", "mrow", "ms",
        "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover", "none",
    }
)  # fmt: skip
ATTRIBUTES = {
    "math": {"display"},
    "mfrac": {"linethickness"},
    "mi": {"mathvariant"},
    "mo": {"fence", "form", "largeop", "lspace", "maxsize", "minsize", "movablelimits", "rspace", "separator", "stretchy", "symmetric"},
    "mspace": {"width"},
    "mstyle": {"displaystyle", "scriptlevel"},
    "mtable": {"columnalign", "columnlines", "rowlines"},
    "mtd": {"columnalign"},
    "mover": {"accent"},
    "munder": {"accentunder"},
    "menclose": {"notation"},
}  # fmt: skip
_NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"
_KNOWN_AS = {f"{{{name}}}": "{align*}" for name in ("aligned", "split")}
"""Environments that latex2mathml knows by another name only."""
_UNKNOWN_COMMAND = re.compile(r"<m[io]>\\[A-Za-z]")


@lru_cache(maxsize=512)
def to_mathml(tex: str, *, block: bool) -> str | None:
    """A `math` element, or None for what is too long, too deep, wrong, or has an unknown command."""
    if len(tex) > MAX_TEX_LENGTH or _nesting(tex) > MAX_NESTING:
        return None
    for name, known in _KNOWN_AS.items():
        tex = tex.replace(name, known)
    try:
        mathml = convert(tex, display="block" if block else "inline")
        is_clean = _has_only_mathml(mathml)
    except (ElementTree.ParseError, RecursionError):
        return None
    except Exception as error:  # its parser raises whatever its input makes it stumble over
        logger.debug("TeX not understood: %s", type(error).__name__)
        return None
    return mathml if is_clean and not _UNKNOWN_COMMAND.search(mathml) else None


def _nesting(tex: str) -> int:
    depth = deepest = 0
    for character in tex:
        depth += (character == "{") - (character == "}")
        deepest = max(deepest, depth)
    return deepest


def _has_only_mathml(mathml: str) -> bool:
    root = ElementTree.fromstring(mathml)
    return all(element.tag.removeprefix(_NAMESPACE) in TAGS for element in root.iter())
