"""Docs that tests keep true: protocol frames, links to files, commands in the README."""

import json
import re
from pathlib import Path

from api.engine_room import HISTORY_FIELDS
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


def test_the_dashboards_page_explains_every_tile_fact_and_column() -> None:
    page = (ROOT / "docs/dashboard.md").read_text()
    tiles = re.findall(
        r'^    \["\w+", "([^"]+)", "', (ROOT / "ui/static/tiles.js").read_text(), re.M
    )
    facts = (ROOT / "ui/static/engine_facts.js").read_text().split("P.machineFacts")[0]
    rows = re.findall(r'^ +\["([A-Z][^"]+)", [`b]', facts, re.M)
    policies = re.findall(r'^    \["\w+", "([^"]+)"\],', facts, re.M)
    assert (len(tiles), len(rows), len(policies)) == (12, 4, 4)
    missing = [name for name in (*tiles, *rows, *policies) if f"| {name} |" not in page]
    assert missing == []
    assert [name for name in HISTORY_FIELDS if f"`{name}`" not in page] == []


def test_grafana_asks_for_series_that_exist() -> None:
    dashboard = json.loads((ROOT / "docs/grafana.json").read_text())
    table = (ROOT / "docs/http.md").read_text().split("<!-- metrics -->")[1]
    known = dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", table, re.M))
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"((?:vllm|pageturn):\w+)\{", target["expr"])
    }
    assert len(asked) > 20
    for name in asked:
        assert known[name.removesuffix("_bucket")], name
        assert name.endswith("_bucket") is (known[name.removesuffix("_bucket")] == "histogram")


def _default(value: object) -> str:
    return f"`{value}`" if isinstance(value, str | int | float) and value is not False else ""
