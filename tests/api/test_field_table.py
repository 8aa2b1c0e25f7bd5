"""docs/api.md says what the code does with each field."""

from pathlib import Path

from tests.api.field_table import table

DOC = Path(__file__).resolve().parents[2] / "docs" / "api.md"


def test_the_document_has_the_table() -> None:
    assert f"<!-- fields -->\n{table()}\n<!-- /fields -->" in DOC.read_text(), (
        "put the output of python -m tests.api.field_table between the marks"
    )
