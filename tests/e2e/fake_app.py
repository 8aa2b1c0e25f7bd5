"""The whole app around the scripted engine, as a process: `python -m tests.e2e.fake_app --port N --data-dir FOLDER`.

Takes the app's own options. What is answered depends on the last user message: "long" gives 400 words, "hostile" text
that tries to become a script, "markdown" a table, code and maths, "list" and "bold list" such with numbers, "stumble" a failure the first time, "echo" what follows it; anything else twelve words.
"long", "markdown" and "echo" are written at a speed that can be watched, unless the message says "quick" too; all else comes at once.
"""

import sys
from collections.abc import Sequence

import uvicorn

from api.settings import load_settings
from app import create_app
from tests.fake_engine import FakeEngine

SLOW_INTERVAL_S = 0.02
QUICK_INTERVAL_S = 0.0005
WATCHED = ("long", "markdown", "echo")
PIECES = 20
HOSTILE = (
    "<script>window.hacked = 1</script> <img src=x onerror='window.hacked = 2'> "
    "[a link](javascript:window.hacked=3) ${window.hacked = 4} {{window.hacked = 5}} "
)
MARKDOWN = (
    "## A heading\n\nIt costs $5 or $10, and $x^2$ is maths.\n\n"
    "```python\ndef answer():\n    return 42\n```\n\n| name | value |\n|:--|--:|\n| a | 1 |\n\n"
    "- [x] done\n- [ ] to do, see https://example.org\n\nThe end.\n"
)
LISTS = ("1. One\n2. Two\n", "**Bold** beginning", "First of all")
BOLD_LISTS = ("1. **One** is bold\n\n2. Two\n", "- **Two** is bold\n", "First of all")

_stumbled: set[str] = set()


def pace(prompt: Sequence[int]) -> float:
    """Slow for what tests look at while it is written."""
    question = question_of(prompt)
    is_watched = any(word in question for word in WATCHED) and "quick" not in question
    return SLOW_INTERVAL_S if is_watched else QUICK_INTERVAL_S


def question_of(prompt: Sequence[int]) -> str:
    """The last user message, and what is there of its answer."""
    return bytes(prompt).decode(errors="replace").rpartition("<user>")[2]


def script(prompt: Sequence[int], index: int) -> list[str]:
    """The answer in pieces; candidates differ."""
    question = question_of(prompt)
    if question.startswith("echo "):
        said = question.removeprefix("echo ").removesuffix("\n")
        size = len(said) // PIECES + 1
        return [said[i : i + size] for i in range(0, len(said), size)]
    if "hostile" in question:
        return [HOSTILE]
    if question.strip() in ("list", "bold list"):
        return list((BOLD_LISTS if "bold" in question else LISTS)[index])
    if "markdown" in question:
        return [MARKDOWN[i : i + 5] for i in range(0, len(MARKDOWN), 5)]
    if "stumble" in question and question not in _stumbled:
        _stumbled.add(question)
        raise RuntimeError("the scripted engine has stumbled")
    count = 400 if "long" in question else 12
    return [f"answer{index}-{number} " for number in range(count)]


def main(arguments: list[str]) -> None:
    """Serve until a signal."""
    settings = load_settings(arguments)
    engine = FakeEngine(script, token_interval=pace, num_blocks=512)
    app = create_app(settings, engine=engine)
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        ws="websockets-sansio",
        log_level="warning",
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
