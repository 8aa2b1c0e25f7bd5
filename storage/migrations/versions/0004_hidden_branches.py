"""Branches of a conversation that were deleted: hidden, and restorable."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("messages", sa.Column("hidden_by", sa.String(32)))
