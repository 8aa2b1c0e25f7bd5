"""Imported conversations know what they were made from; unknown for older ones."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("conversations", sa.Column("origin", sa.String(32)))
    op.create_index("ix_conversations_origin", "conversations", ["origin"])
