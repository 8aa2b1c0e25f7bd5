"""API keys: where they come from, `--api-key` and `--api-key-file`."""

import re
from pathlib import Path

from engine.errors import ConfigError

ALLOWED = "visible ASCII without spaces; commas stand between several"


def split_keys(text: str) -> tuple[str, ...]:
    """The keys of `--api-key`. Raises ConfigError, which does not show them."""
    keys = tuple(text.split(","))
    if not all(re.fullmatch(r"[!-~]+", key) for key in keys):
        raise ConfigError("--api-key", "(hidden)" if text else "", ALLOWED)
    return keys


def read_key_file(path: Path) -> tuple[str, ...]:
    """The keys of `--api-key-file`: one a line; empty lines and lines that begin with # are skipped.

    Raises ConfigError naming the line that holds no key, and when there is no key at all.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_file(path, f"a text file that can be read ({error})") from None
    keys = {n: line.strip() for n, line in enumerate(lines, 1) if not line.startswith("#")}
    keys = {number: key for number, key in keys.items() if key}
    for number, key in keys.items():
        if not re.fullmatch(r"[!-+\--~]+", key):
            raise _bad_file(path, f"line {number} must be visible ASCII without spaces and commas")
    if not keys:
        raise _bad_file(path, "a file with one key a line, at least one")
    return tuple(keys.values())


def _bad_file(path: Path, allowed: str) -> ConfigError:
    return ConfigError("--api-key-file", str(path), allowed)
