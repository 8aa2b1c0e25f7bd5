"""Bring a database to the newest schema, in the process, over a connection that is already in a transaction.

The migrations lie beside this file, so an installed tree needs no alembic.ini, and the URL passes through no
configuration file, whose `%` would need escaping.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from storage.errors import StorageError

MIGRATIONS = Path(__file__).parent / "migrations"


def migration_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration; `connection` is what env.py migrates."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection) -> None:
    """Run what is missing, all or nothing where the database can roll back its schema. Raises StorageError."""
    try:
        command.upgrade(migration_config(connection), "head")
    except CommandError as error:
        message = f"the database does not fit this version, perhaps a newer one made it: {error}"
        raise StorageError(message) from error
