"""Docs that tests keep true: protocol frames, links to files, commands in the README."""

import re
from pathlib import Path

from api.settings import Settings, option_name

ROOT = Path(__file__).resolve().parents[1]


def test_every_file_that_a_doc_links_to_exists() -> None:
    missing = [
        f"{doc.name}: {target}"
        for doc in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", doc.read_text())
        if not (doc.parent / target).exists()
    ]
    assert missing == []


def test_readme_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", (ROOT / "README.md").read_text()))
    assert {"run", "test"} <= named <= targets


def test_ci_calls_make_test() -> None:
    assert re.search(r"^make test$", (ROOT / ".ci/run").read_text(), re.MULTILINE)


def test_readme_lists_every_option_as_the_parser_knows_it() -> None:
    rows = [
        f"| `{option_name(name)}` | {field.description} | {_default(field.default)} |"
        for name, field in Settings.model_fields.items()
    ]
    table = "\n".join(["| option | what it sets | default |", "|---|---|---|", *rows])
    readme = (ROOT / "README.md").read_text()
    assert f"<!-- options -->\n{table}\n<!-- /options -->" in readme, f"put this in:\n{table}"


def _default(value: object) -> str:
    return f"`{value}`" if isinstance(value, str | int | float) and value is not False else ""
