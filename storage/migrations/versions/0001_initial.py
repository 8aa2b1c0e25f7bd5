"""Conversations, the message tree, and the engine's samples."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SAMPLE_COUNTS = (
    "blocks_total",
    "blocks_private",
    "blocks_shared",
    "blocks_cached",
    "blocks_free",
    "block_size",
    "num_running",
    "num_waiting",
    "waiting_capacity",
    "waiting_budget",
)
_SAMPLE_TOTALS = (
    "num_steps",
    "tokens_capacity",
    "tokens_stored",
    "preemptions",
    "forks",
    "cow_copies",
    "prefix_queries",
    "prefix_hits",
    "generated_tokens",
    "prompt_tokens",
    "requests",
    "bytes_paged",
    "bytes_max_len",
    "bytes_pow2",
    "bytes_exact",
)


def upgrade() -> None:
    _create_conversations()
    _create_messages()
    _create_engine_samples()


def _create_conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("system_prompt", sa.Text()),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("head_id", sa.String(32)),
        sa.Column("open_generation_id", sa.String(32)),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_conversations"),
    )
    op.create_index("ix_conversations_updated_at", "conversations", ["updated_at"])


def _create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("conversation_id", sa.String(32), nullable=False),
        sa.Column("parent_id", sa.String(32)),
        sa.Column("last_viewed_child_id", sa.String(32)),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("finish_reason", sa.String(16)),
        sa.Column("generation_id", sa.String(32)),
        sa.Column("candidate_index", sa.Integer()),
        sa.Column("seed", sa.BigInteger()),
        sa.Column("sampling", sa.JSON()),
        sa.Column("usage", sa.JSON()),
        sa.Column("timings", sa.JSON()),
        sa.Column("kv", sa.JSON()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name="fk_messages_conversation_id_conversations",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"], ["messages.id"], name="fk_messages_parent_id_messages"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_messages"),
    )
    op.create_index(
        "ix_messages_conversation_id_created_at", "messages", ["conversation_id", "created_at"]
    )
    op.create_index("ix_messages_parent_id", "messages", ["parent_id"])
    generating = sa.text("status = 'generating'")
    op.create_index(
        "ix_messages_generating",
        "messages",
        ["id"],
        sqlite_where=generating,
        postgresql_where=generating,
    )


def _create_engine_samples() -> None:
    op.create_table(
        "engine_samples",
        sa.Column("time", sa.BigInteger(), nullable=False, autoincrement=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in _SAMPLE_COUNTS),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _SAMPLE_TOTALS),
        sa.PrimaryKeyConstraint("time", name="pk_engine_samples"),
    )
