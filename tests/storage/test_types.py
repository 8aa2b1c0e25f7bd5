"""Column types: times keep their instant, seeds their 64 bits."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy.dialects import sqlite

from storage.types import TokenIds, UInt64, UtcDateTime

DIALECT = sqlite.dialect()


@pytest.mark.parametrize("value", [None, 0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_unsigned_numbers_fit_a_signed_column(value: int | None) -> None:
    stored = UInt64().process_bind_param(value, DIALECT)
    assert stored is None or -(2**63) <= stored < 2**63
    assert UInt64().process_result_value(stored, DIALECT) == value


def test_times_are_stored_and_come_back_in_utc() -> None:
    local = datetime(2030, 1, 1, 3, tzinfo=timezone(timedelta(hours=3)))
    stored = UtcDateTime().process_bind_param(local, DIALECT)
    assert stored == datetime(2030, 1, 1, tzinfo=UTC)
    naive = datetime(2030, 1, 1)
    assert UtcDateTime().process_result_value(naive, DIALECT) == local


@pytest.mark.parametrize("value", [None, (), (0, 1, 151_935, 2**32 - 1)])
def test_token_ids_take_four_bytes_each(value: tuple[int, ...] | None) -> None:
    stored = TokenIds().process_bind_param(value, DIALECT)
    assert (None if stored is None else len(stored)) == (None if value is None else 4 * len(value))
    assert TokenIds().process_result_value(stored, DIALECT) == value
