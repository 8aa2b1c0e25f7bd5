"""The tables. Migrations in storage/migrations lead to exactly these; a test compares the two.

`conversations.head_id` and `open_generation_id` carry no foreign key: head and messages would refer to each other in a
circle. `messages.last_viewed_child_id` leads from a message to the leaf that was last on show below it
(docs/decisions/001-message-tree.md). What SQLite is searched with (`search_*`) is in migration 0003 alone.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, MetaData, String, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from storage.types import TokenIds, UInt64, UtcDateTime

_Id = String(32)
_Json = JSON(none_as_null=True)

# A literal, so that SQLite can see that the partial index answers it.
GENERATING = text("status = 'generating'")


class Base(DeclarativeBase):
    """Names every index and constraint, so that migrations can refer to them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Conversation(Base):
    """One conversation. `deleted_at` hides it; only a purge removes the row. `origin`: what an import was made from."""

    __tablename__ = "conversations"

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    title: Mapped[str] = mapped_column(Text)
    system_prompt: Mapped[str | None] = mapped_column(Text)
    when_full: Mapped[str] = mapped_column(String(16), server_default="stop")
    sampling: Mapped[dict[str, Any]] = mapped_column(_Json)
    head_id: Mapped[str | None] = mapped_column(_Id)
    open_generation_id: Mapped[str | None] = mapped_column(_Id)
    pinned: Mapped[bool]
    owner: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    origin: Mapped[str | None] = mapped_column(_Id)

    __table_args__ = (Index(None, "pinned", "updated_at", "id"), Index(None, "origin"))


class Message(Base):
    """One node of a conversation's tree. `created_at` strictly grows inside a conversation and is its order.

    `token_ids` holds what the model drew for `content`, and is written together with it; NULL where nobody knows.
    `hidden_by` is the message below which everything was deleted, itself included; NULL for what is to be seen.
    """

    __tablename__ = "messages"

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversations.id", ondelete="CASCADE"))
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("messages.id"))
    last_viewed_child_id: Mapped[str | None] = mapped_column(_Id)
    role: Mapped[str] = mapped_column(String(16))
    content: Mapped[str] = mapped_column(Text)
    token_ids: Mapped[tuple[int, ...] | None] = mapped_column(TokenIds)
    status: Mapped[str] = mapped_column(String(16))
    error: Mapped[str | None] = mapped_column(Text)
    finish_reason: Mapped[str | None] = mapped_column(String(16))
    generation_id: Mapped[str | None] = mapped_column(_Id)
    candidate_index: Mapped[int | None]
    model: Mapped[str | None] = mapped_column(Text)
    dropped_messages: Mapped[int | None]
    seed: Mapped[int | None] = mapped_column(UInt64)
    sampling: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    usage: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    timings: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    kv: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    hidden_by: Mapped[str | None] = mapped_column(_Id)

    __table_args__ = (
        Index(None, "conversation_id", "created_at"),
        Index(None, "parent_id"),
        Index(
            "ix_messages_generating",
            "id",
            sqlite_where=GENERATING,
            postgresql_where=GENERATING,
        ),
    )


class EngineSampleRow(Base):
    """The engine in one second: gauges as of that moment, counters as totals since the engine's start."""

    __tablename__ = "engine_samples"

    time: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    num_steps: Mapped[int] = mapped_column(BigInteger)
    blocks_total: Mapped[int]
    blocks_private: Mapped[int]
    blocks_shared: Mapped[int]
    blocks_cached: Mapped[int]
    blocks_free: Mapped[int]
    block_size: Mapped[int]
    tokens_capacity: Mapped[int] = mapped_column(BigInteger)
    tokens_stored: Mapped[int] = mapped_column(BigInteger)
    num_running: Mapped[int]
    num_waiting: Mapped[int]
    waiting_capacity: Mapped[int]
    waiting_budget: Mapped[int]
    preemptions: Mapped[int] = mapped_column(BigInteger)
    forks: Mapped[int] = mapped_column(BigInteger)
    cow_copies: Mapped[int] = mapped_column(BigInteger)
    prefix_queries: Mapped[int] = mapped_column(BigInteger)
    prefix_hits: Mapped[int] = mapped_column(BigInteger)
    generated_tokens: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    requests: Mapped[int] = mapped_column(BigInteger)
    bytes_paged: Mapped[int] = mapped_column(BigInteger)
    bytes_max_len: Mapped[int] = mapped_column(BigInteger)
    bytes_pow2: Mapped[int] = mapped_column(BigInteger)
    bytes_exact: Mapped[int] = mapped_column(BigInteger)
    engine_started: Mapped[int] = mapped_column(BigInteger, server_default="0")
    blocks_saved: Mapped[int] = mapped_column(BigInteger, server_default="0")
    bytes_fragmented: Mapped[int] = mapped_column(BigInteger, server_default="0")
    waiting_deferred: Mapped[int] = mapped_column(BigInteger, server_default="0")
    ttft: Mapped[bytes | None]
    itl: Mapped[bytes | None]
    queue: Mapped[bytes | None]
