"""The tests' own database does what other tests rely on."""

from __future__ import annotations

import asyncpg
import pytest

from tests.database import Database


async def test_a_test_gets_a_database_with_the_newest_schema(database: Database) -> None:
    connection = await asyncpg.connect(database.owner_url)
    try:
        assert (
            await connection.fetchval("SELECT to_regclass('public.alembic_version')::text")
            == "alembic_version"
        )
    finally:
        await connection.close()


async def test_the_app_role_may_not_change_the_schema(database: Database) -> None:
    connection = await asyncpg.connect(database.app_url)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("CREATE TABLE mine ()")
    finally:
        await connection.close()


async def test_an_empty_database_has_no_schema(empty_database: Database) -> None:
    connection = await asyncpg.connect(empty_database.owner_url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    finally:
        await connection.close()
