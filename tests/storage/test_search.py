"""Finding words in titles and messages: by the index, and by reading everything, with the same result."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine, text

from storage import search
from storage.migrate import migration_config, upgrade
from storage.records import AnswerEnd, AnswerText, ImportedConversation, ImportedMessage
from storage.search import words_of
from storage.storage import Storage
from tests.e2e.hostile import TEXTS
from tests.storage.turns import new_turn


@pytest.fixture(params=["indexed", "scanned"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How SQLite searches, and how other databases do."""
    if request.param == "scanned":
        monkeypatch.setattr(search, "_indexed", search._scanned)
    return request.param


async def add(storage: Storage, title: str, *contents: str) -> str:
    messages = tuple(
        ImportedMessage(parent=i - 1 if i else None, role="user", content=content, status="done")
        for i, content in enumerate(contents)
    )
    imported = ImportedConversation(
        title=title, system_prompt=None, sampling={}, pinned=False, head=None, messages=messages
    )
    return (await storage.conversations.add_imports([imported]))[0]


async def titles(storage: Storage, query: str) -> list[str]:
    page = await storage.conversations.find(words_of(query), None, 100)
    return sorted(hit.record.title for hit in page.hits)


async def test_titles_and_texts_are_found_by_parts_of_words_in_any_order(
    storage: Storage, way: str
) -> None:
    await add(storage, "Rivers of Europe", "about the Rhine", "and the Danube")
    await add(storage, "50%_off", "a sale of bread")
    await add(storage, "猫の話", "猫は静かに眠る")
    for query, found in {
        "riv": ["Rivers of Europe"],
        "EUROPE rivers": ["Rivers of Europe"],
        "hin": ["Rivers of Europe"],
        "rhine danube": [],
        "danube a": ["Rivers of Europe"],
        "danube zz": [],
        "50%_": ["50%_off"],
        "%": ["50%_off"],
        "of": ["50%_off", "Rivers of Europe"],
        "静かに": ["猫の話"],
        "猫": ["猫の話"],
        'NOT "title:*" ^x OR': [],
    }.items():
        assert await titles(storage, query) == found, query


async def test_a_hit_names_the_message_and_carries_its_text(storage: Storage, way: str) -> None:
    conversation_id = await add(storage, "bread and butter", "flour", "bread of rye")
    _, _, messages = await storage.conversations.messages(conversation_id)
    (hit,) = (await storage.conversations.find(("bread",), None, 9)).hits
    assert (hit.message_id, hit.text) == (messages[1].id, "bread of rye")
    (hit,) = (await storage.conversations.find(("butter",), None, 9)).hits
    assert (hit.message_id, hit.text) == (None, "bread and butter")


async def test_a_hit_says_whether_it_is_on_another_branch(storage: Storage, way: str) -> None:
    store = storage.conversations
    texts = ((None, "bread"), (0, "of wheat"), (1, "and water"), (0, "of rye"))
    messages = tuple(
        ImportedMessage(parent=parent, role="user", content=content, status="done")
        for parent, content in texts
    )
    branched = ImportedConversation(
        title="Loaves", system_prompt=None, sampling={}, pinned=False, head=2, messages=messages
    )
    (identity,) = await store.add_imports([branched])

    async def elsewhere(word: str) -> bool:
        (hit,) = (await store.find((word,), None, 9)).hits
        return hit.other_branch

    shown = {"bread": False, "wheat": False, "water": False, "rye": True, "Loaves": False}
    assert {word: await elsewhere(word) for word in shown} == shown
    _, _, records = await store.messages(identity)
    await store.select(records[3].id)
    shown |= {"wheat": True, "water": True, "rye": False}
    assert {word: await elsewhere(word) for word in shown} == shown


async def test_pages_of_hits_follow_each_other(storage: Storage, way: str) -> None:
    for number in range(5):
        await add(storage, f"bread {number}", "x")
    first = await storage.conversations.find(("bread",), None, 3)
    second = await storage.conversations.find(("bread",), first.next, 3)
    assert [len(first.hits), len(second.hits), second.next] == [3, 2, None]
    assert len({hit.record.id for hit in (*first.hits, *second.hits)}) == 5


async def test_what_is_deleted_is_not_found_until_it_is_back(storage: Storage, way: str) -> None:
    store = storage.conversations
    whole = await add(storage, "whole", "needle")
    part = await add(storage, "part", "hay", "needle in hay")
    _, _, messages = await store.messages(part)
    await store.hide(whole)
    assert await titles(storage, "needle") == ["part"]
    await store.hide_branch(messages[1].id)
    assert await titles(storage, "needle") == []
    await store.restore_branch(messages[1].id)
    await store.restore(whole)
    assert await titles(storage, "needle") == ["part", "whole"]
    await store.purge(whole)
    assert await titles(storage, "needle") == ["part"]


async def test_answers_are_found_once_they_have_ended_and_titles_as_they_are_now(
    storage: Storage, way: str
) -> None:
    store = storage.conversations
    turn = await store.add_turn(new_turn("question", title="before"))
    (answer,) = turn.answer_ids
    await store.save_texts({answer: AnswerText("half a needle", ())})
    assert await titles(storage, "needle") == []
    end = AnswerEnd(
        content="a whole needle",
        token_ids=(),
        status="done",
        finish_reason="stop",
        usage=None,
        timings=None,
        kv=None,
    )
    await store.end_answer(answer, end)
    await store.update(turn.conversation_id, {"title": "after"})
    assert await titles(storage, "whole needle") == ["after"]
    assert await titles(storage, "before") == []
    assert await titles(storage, "after") == ["after"]


async def test_an_interrupted_answer_is_found(storage: Storage, way: str) -> None:
    turn = await storage.conversations.add_turn(new_turn("question"))
    await storage.conversations.save_texts({turn.answer_ids[0]: AnswerText("half a needle", ())})
    await storage.conversations.interrupt_leftovers()
    assert await titles(storage, "needle") == ["hello"]


@pytest.mark.parametrize("start", range(0, len(TEXTS), 12))
async def test_hostile_texts_are_stored_and_looked_for_as_any_other(
    storage: Storage, way: str, start: int
) -> None:
    for number, content in enumerate(TEXTS[start : start + 12]):
        title = f"number {number}"
        await add(storage, title, content)
        words = words_of(content)
        if words and sum(map(len, words)) < 1000:
            assert title in await titles(storage, content), ascii(content)
        else:
            await titles(storage, content)


def test_words_are_few_and_each_comes_once() -> None:
    assert words_of(" a b\0c a\n") == ("a", "b", "c")
    assert words_of("") == ()
    assert len(words_of(" ".join(map(str, range(100))))) == 16


def _search(path: Path, word: str) -> Sequence[tuple[int]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO search_index (search_index) VALUES ('integrity-check')")
        query = "SELECT rowid FROM search_index WHERE search_index MATCH ?"
        return connection.execute(query, (word,)).fetchall()


def test_what_an_older_database_holds_is_found(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        command.upgrade(migration_config(connection), "0002")
        connection.execute(
            text(
                "insert into conversations (id, title, sampling, pinned, created_at, updated_at)"
                " values ('c', 'an old title', '{}', 0, '2030-01-01', '2030-01-01')"
            )
        )
        connection.execute(
            text(
                "insert into messages (id, conversation_id, role, content, status, created_at)"
                " values ('m', 'c', 'user', 'an old text', 'done', '2030-01-01')"
            )
        )
        upgrade(connection)
    engine.dispose()
    assert _search(path, "old") == [(1,), (2,)]


async def test_the_index_agrees_with_the_texts_after_changes_and_vacuum(
    storage: Storage, database_path: Path
) -> None:
    first = await add(storage, "first", "needle one")
    await add(storage, "second", "needle two")
    await storage.conversations.update(first, {"title": "needle three"})
    await storage.conversations.purge(first)
    await storage.close()
    with closing(sqlite3.connect(database_path)) as connection:
        connection.execute("VACUUM")
    assert len(_search(database_path, "needle")) == 1
