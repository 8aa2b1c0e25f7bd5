"""The token ids of answers; unknown for those that are there already."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("messages", sa.Column("token_ids", sa.LargeBinary()))
