"""No statement and no lock is waited for without end; migrations alone may take their time."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.control.database_errors import translate
from app.core.database import connect_engine
from tests.database import Database

_SETTINGS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


async def _shown(url: str, *, statement_timeout_s: float | None) -> list[str]:
    engine = connect_engine(url, pool_size=1, statement_timeout_s=statement_timeout_s)
    try:
        async with engine.connect() as connection:
            return [str((await connection.execute(text(f"SHOW {name}"))).scalar_one()) for name in _SETTINGS]
    finally:
        await engine.dispose()


async def test_a_connection_bounds_statements_locks_and_idle_transactions(empty_database: Database) -> None:
    assert await _shown(empty_database.app_url, statement_timeout_s=30) == ["30s", "10s", "1min"]


async def test_migrations_take_the_time_that_they_need(empty_database: Database) -> None:
    assert await _shown(empty_database.owner_url, statement_timeout_s=None) == ["0", "0", "0"]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT pg_sleep(60)", "took too long"),
        ("SELECT pg_advisory_xact_lock(7)", "rival change"),
    ],
)
async def test_what_takes_too_long_ends_with_an_answer_that_says_so(
    empty_database: Database, statement: str, words: str
) -> None:
    engine = connect_engine(empty_database.app_url, pool_size=2, statement_timeout_s=0.3)
    try:
        async with engine.connect() as holder, engine.connect() as waiter:
            await holder.execute(text("SELECT pg_advisory_lock(7)"))
            with pytest.raises(DBAPIError) as caught:
                await waiter.execute(text(statement))
        told = translate(caught.value)
    finally:
        await engine.dispose()
    assert told.retryable
    assert words in told.public_message
