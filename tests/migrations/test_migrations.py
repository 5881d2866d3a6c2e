"""The migrations go up, down and up again on real PostgreSQL, and the tables in code are what they make."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from typing import Any

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

import app
import billing
import scheduler
from app.core.database import PicosType, connect_engine, metadata
from migrations import runner
from tests.database import Database

_OBJECTS = """
SELECT 'table ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
    || ' ' || a.attnotnull
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND c.relname <> 'alembic_version'
UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || pg_get_constraintdef(oid)
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace
  AND conrelid <> coalesce(to_regclass('alembic_version'), 0::regclass)
UNION ALL SELECT 'index ' || indexdef FROM pg_indexes
  WHERE schemaname = 'public' AND tablename <> 'alembic_version'
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(t.oid) FROM pg_trigger t WHERE NOT tgisinternal
UNION ALL SELECT 'function ' || p.oid::regprocedure || md5(p.prosrc) FROM pg_proc p
  WHERE pronamespace = 'public'::regnamespace
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
UNION ALL SELECT 'grant ' || table_name || ' ' || grantee || ' ' || privilege_type
  FROM information_schema.role_table_grants
  WHERE table_schema = 'public' AND grantee = 'steelyard_app' AND table_name <> 'alembic_version'
ORDER BY 1
"""


async def objects(database: Database) -> list[str]:
    """Everything that the migrations made, a line each."""
    connection = await asyncpg.connect(database.owner_url)
    try:
        return [row[0] for row in await connection.fetch(_OBJECTS)]
    finally:
        await connection.close()


async def migrated(database: Database, *, verb: str, revision: str) -> list[str]:
    step = {"upgrade": runner.upgrade, "downgrade": runner.downgrade}[verb]
    await asyncio.to_thread(step, database.owner_url, revision)
    return await objects(database)


async def test_up_down_and_up_again_gives_the_same_schema(empty_database: Database) -> None:
    assert await objects(empty_database) == []
    first = await migrated(empty_database, verb="upgrade", revision="head")
    assert any(line.startswith("table usage_event.cost picos") for line in first)
    assert any(line == "grant usage_event steelyard_app INSERT" for line in first)
    assert await migrated(empty_database, verb="downgrade", revision="base") == []
    assert await migrated(empty_database, verb="upgrade", revision="head") == first


async def test_each_step_down_undoes_its_step_up(empty_database: Database) -> None:
    script = ScriptDirectory.from_config(runner._config())
    revisions = [each.revision for each in reversed(list(script.walk_revisions()))]
    assert len(script.get_heads()) == 1
    states: dict[str, list[str]] = {"base": []}
    for revision in revisions:
        states[revision] = await migrated(empty_database, verb="upgrade", revision=revision)
    below = ["base", *revisions]
    for revision in reversed(revisions):
        target = below[below.index(revision) - 1]
        assert await migrated(empty_database, verb="downgrade", revision=target) == states[target]


async def test_a_second_runner_waits_for_the_first_however_long_it_takes(empty_database: Database) -> None:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND query_start < $1"
    first = await asyncpg.connect(empty_database.owner_url)
    try:
        await first.execute(f"SELECT pg_advisory_lock({runner._ADVISORY_LOCK})")
        second = asyncio.create_task(
            asyncio.to_thread(runner.upgrade, empty_database.owner_url, lock_timeout="1ms")
        )
        while not second.done():
            past = await first.fetchval("SELECT clock_timestamp() - interval '20 milliseconds'")
            if await first.fetchval(waits, past):
                break
    finally:
        await first.close()
    await second
    assert await objects(empty_database)


def load_all_tables() -> None:
    """Import every room's `tables.py`."""
    for package in (app, billing, scheduler):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith(".tables"):
                importlib.import_module(module.name)


def differences(connection: Connection) -> list[Any]:
    """What autogeneration would change, but for types: those are compared below."""
    context = MigrationContext.configure(connection, opts={"compare_type": False})
    found = compare_metadata(context, metadata)
    return [change for change in found if not _is_alembic(change) and not _is_constraint(change)]


def _is_alembic(change: Any) -> bool:
    return change[0] == "remove_table" and change[1].name == "alembic_version"


def _is_constraint(change: Any) -> bool:
    """Indexes and constraints belong to the migrations; code needs columns, keys and nullability."""
    return "index" in change[0] or "constraint" in change[0]


async def test_the_tables_in_code_are_the_migrated_ones(database: Database) -> None:
    load_all_tables()
    engine = connect_engine(database.owner_url)
    try:
        async with engine.connect() as connection:
            assert await connection.run_sync(differences) == []
            kinds = await connection.execute(
                text(
                    "SELECT table_name, column_name, coalesce(domain_name, udt_name) "
                    "FROM information_schema.columns WHERE table_schema = 'public'"
                )
            )
            types = {(table, column): kind for table, column, kind in kinds}
    finally:
        await engine.dispose()
    picos = {key for key, kind in types.items() if kind == "picos"}
    in_code = {
        (table.name, column.name)
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, PicosType)
    }
    assert in_code == picos


async def test_no_column_is_a_float(database: Database) -> None:
    connection = await asyncpg.connect(database.owner_url)
    try:
        floats = await connection.fetchval(
            "SELECT count(*) FROM information_schema.columns "
            "WHERE table_schema = 'public' AND udt_name IN ('float4', 'float8', 'money')"
        )
        assert floats == 0
    finally:
        await connection.close()


async def test_the_audit_log_can_not_be_emptied_by_its_owner(database: Database) -> None:
    connection = await asyncpg.connect(database.owner_url)
    try:
        with pytest.raises(asyncpg.RestrictViolationError, match="history stands"):
            await connection.execute("TRUNCATE audit_log")
    finally:
        await connection.close()
