"""The list, page by page, in a database of thousands."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import connect
from typing import Any

import pytest
from sqlalchemy import event

from storage.records import ImportedConversation, ImportedMessage
from storage.storage import Storage
from tests.storage.turns import new_turn

START = datetime(2020, 1, 1, tzinfo=UTC)


def conversation(number: int, *, pinned: bool = False) -> ImportedConversation:
    said = ImportedMessage(parent=None, role="user", content=f"text {number} here", status="done")
    return ImportedConversation(
        title=f"title {number}",
        system_prompt=None,
        sampling={},
        pinned=pinned,
        head=None,
        messages=(said,),
        created_at=START,
        updated_at=START + timedelta(minutes=number),
    )


async def all_pages(storage: Storage, limit: int) -> list[list[str]]:
    pages, after = [], None
    while True:
        page = await storage.conversations.page(after, limit)
        pages.append([record.title for record in page.records])
        if page.next is None:
            return pages
        after = page.next


async def test_pages_follow_each_other_pinned_first_then_newest(storage: Storage) -> None:
    added = [conversation(n, pinned=n == 2) for n in range(7)]
    await storage.conversations.add_imports(added)
    assert await all_pages(storage, 3) == [
        ["title 2", "title 6", "title 5"],
        ["title 4", "title 3", "title 1"],
        ["title 0"],
    ]
    assert await all_pages(storage, 7) == [[f"title {n}" for n in (2, 6, 5, 4, 3, 1, 0)]]


async def test_equal_times_are_told_apart(storage: Storage) -> None:
    await storage.conversations.add_imports([conversation(1) for _ in range(5)])
    assert [len(page) for page in await all_pages(storage, 2)] == [2, 2, 1]


async def test_what_is_said_between_two_pages_moves_no_row(storage: Storage) -> None:
    await storage.conversations.add_imports([conversation(n) for n in range(4)])
    first = await storage.conversations.page(None, 2)
    await storage.conversations.add_turn(new_turn())
    second = await storage.conversations.page(first.next, 2)
    assert [r.title for r in second.records] == ["title 1", "title 0"]


async def test_deleted_ones_are_on_no_page(storage: Storage) -> None:
    ids = await storage.conversations.add_imports([conversation(n) for n in range(3)])
    await storage.conversations.hide(ids[1])
    assert await all_pages(storage, 1) == [["title 2"], ["title 0"]]


@pytest.mark.parametrize(
    "after",
    ["", "1", "1.2", "1.x.id", "1.2.3.4", f"0.{10**30}.id", "0.1_0.id", "0.+1.id", "0. 1.id"],
)
async def test_a_place_that_is_none_is_refused(storage: Storage, after: str) -> None:
    with pytest.raises(ValueError):
        await storage.conversations.page(after, 2)


async def test_five_thousand_cost_no_more_statements_and_no_sorting(
    storage: Storage, database_path: Path
) -> None:
    await storage.conversations.add_imports([conversation(n) for n in range(5000)])
    statements: list[tuple[str, Any]] = []
    engine = storage.database._engine.sync_engine
    event.listen(
        engine,
        "before_cursor_execute",
        lambda _c, _cursor, sql, parameters, *_: statements.append((sql, parameters)),
    )
    page = await storage.conversations.page(None, 100)
    await storage.conversations.page(page.next, 100)
    lists = [each for each in statements if each[0].startswith("SELECT")]
    assert len(page.records) == 100
    assert len(lists) == 2
    with connect(database_path) as connection:
        plans = [
            str(connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall())
            for sql, parameters in lists
        ]
    connection.close()
    for plan in plans:
        assert "ix_conversations_pinned_updated_at_id" in plan
        assert "TEMP B-TREE" not in plan
    statements.clear()
    hits = await storage.conversations.find(("text", "4999"), None, 100)
    assert [hit.record.title for hit in hits.hits] == ["title 4999"]
    hits = await storage.conversations.find(("here",), None, 100)
    assert len(hits.hits) == 100
    assert len([each for each in statements if each[0].startswith("SELECT")]) == 4
