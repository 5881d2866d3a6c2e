"""The books are proven by rebuilding them, and a wrong entry is found."""

from __future__ import annotations

from typing import Any

import asyncpg

from app.core.database import connect_engine
from app.workers.proofs import last_proof, prove, prove_books
from tests.database import Database


async def proven(database: Database) -> dict[str, object]:
    engine = connect_engine(database.app_url)
    try:
        async with engine.connect() as connection:
            return await prove(connection)
    finally:
        await engine.dispose()


async def test_empty_books_are_well(database: Database) -> None:
    assert await proven(database) == {"unbalanced": [], "drifting": []}


def test_the_last_proof_is_shown_as_health(database: Database) -> None:
    assert prove_books(database.app_url) == last_proof() == {"unbalanced": [], "drifting": []}


async def test_an_entry_without_its_other_leg_is_found(database: Database) -> None:
    connection = await asyncpg.connect(database.owner_url)
    try:
        await force_unbalanced_entry(connection)
    finally:
        await connection.close()
    assert (await proven(database))["unbalanced"] == ["USD"]


async def force_unbalanced_entry(connection: asyncpg.Connection[Any]) -> None:
    """Write what the ledger's own constraint forbids, as a broken disk or a hand in the database might."""
    tenant = "ten_" + "0" * 32
    async with connection.transaction():
        for statement in (
            "ALTER TABLE ledger_entry DISABLE TRIGGER USER",
            "ALTER TABLE ledger_transaction DISABLE TRIGGER USER",
            f"INSERT INTO tenant (id, name, currency) VALUES ('{tenant}', 'Broken', 'USD')",
            f"INSERT INTO ledger_account (tenant_id, kind, currency) VALUES ('{tenant}', 'promo', 'USD')",
            f"""INSERT INTO ledger_transaction (id, kind, ref_type, ref_id, tenant_id, at, entry_count)
                VALUES ('txn_1', 'grant', 'test', '1', '{tenant}', now(), 2)""",
            """INSERT INTO ledger_entry (transaction_id, account_id, amount)
                SELECT 'txn_1', id, 5 FROM ledger_account""",
        ):
            await connection.execute(statement)
