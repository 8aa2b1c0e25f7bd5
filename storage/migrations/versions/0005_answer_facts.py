"""What became of an answer and who wrote it; what a conversation does when its context is full."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("messages", sa.Column("error", sa.Text()))
    op.add_column("messages", sa.Column("model", sa.Text()))
    op.add_column("messages", sa.Column("dropped_messages", sa.Integer()))
    when_full = sa.Column("when_full", sa.String(16), nullable=False, server_default="stop")
    op.add_column("conversations", when_full)
