"""Engine samples tell engines apart, and hold what takes how long, waste and savings; unknown for older ones."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_TOTALS = ("engine_started", "blocks_saved", "bytes_fragmented", "waiting_deferred")
_DURATIONS = ("ttft", "itl", "queue")


def upgrade() -> None:
    for name in _TOTALS:
        op.add_column(
            "engine_samples", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        )
    for name in _DURATIONS:
        op.add_column("engine_samples", sa.Column(name, sa.LargeBinary()))
