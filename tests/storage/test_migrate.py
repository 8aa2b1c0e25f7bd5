"""The migrations lead to exactly the tables of storage/models.py."""

from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, text

from storage.database import sqlite_url
from storage.errors import StorageError
from storage.migrate import migration_config, upgrade
from storage.models import Base
from storage.storage import Storage
from tests.storage.turns import new_turn


@pytest.fixture
def connection(tmp_path: Path):
    engine = create_engine(f"sqlite:///{tmp_path / 'migrated.db'}")
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def test_migrated_schema_equals_the_models(connection: Connection) -> None:
    upgrade(connection)
    options = {"compare_type": True, "include_name": _is_of_the_models}
    context = MigrationContext.configure(connection, opts=options)
    assert compare_metadata(context, Base.metadata) == []


def _is_of_the_models(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or not str(name).startswith("search_")


def test_foreign_keys_equal_the_models(connection: Connection) -> None:
    upgrade(connection)
    found = {
        (
            tuple(key["constrained_columns"]),
            key["referred_table"],
            key.get("options", {}).get("ondelete"),
        )
        for key in inspect(connection).get_foreign_keys("messages")
    }
    assert found == {
        (("conversation_id",), "conversations", "CASCADE"),
        (("parent_id",), "messages", None),
    }


def test_upgrading_twice_changes_nothing(connection: Connection) -> None:
    upgrade(connection)
    upgrade(connection)
    heads = ScriptDirectory.from_config(migration_config()).get_heads()
    found = connection.execute(text("select version_num from alembic_version")).scalars().all()
    assert list(found) == list(heads)
    assert len(heads) == 1


def test_answers_older_than_token_ids_keep_their_text_and_have_none(connection: Connection) -> None:
    command.upgrade(migration_config(connection), "0001")
    connection.execute(
        text(
            "insert into conversations (id, title, sampling, pinned, created_at, updated_at)"
            " values ('c', 't', '{}', 0, '2030-01-01', '2030-01-01')"
        )
    )
    connection.execute(
        text(
            "insert into messages (id, conversation_id, role, content, status, created_at)"
            " values ('m', 'c', 'assistant', 'said before', 'done', '2030-01-01')"
        )
    )
    upgrade(connection)
    row = connection.execute(text("select content, token_ids from messages")).one()
    assert tuple(row) == ("said before", None)


async def test_opening_again_keeps_what_is_there(storage: Storage, database_path: Path) -> None:
    await storage.conversations.add_turn(new_turn())
    await storage.close()
    again = Storage(sqlite_url(database_path))
    await again.open()
    assert len((await again.conversations.page(None, 9)).records) == 1
    await again.close()


def test_a_database_of_a_newer_version_is_refused(connection: Connection) -> None:
    upgrade(connection)
    connection.execute(text("update alembic_version set version_num = '9999'"))
    with pytest.raises(StorageError, match="newer"):
        upgrade(connection)
