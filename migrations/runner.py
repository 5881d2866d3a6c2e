"""Runs the migrations without an ini file: `python -m migrations.runner [upgrade|downgrade] [REVISION]`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from app.core.database import connect_engine
from app.core.settings import settings

LOCK_TIMEOUT = "5s"
_ADVISORY_LOCK = 0x57EE1


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


async def _run(url: str, step: Callable[[Config], None], *, lock_timeout: str = LOCK_TIMEOUT) -> None:
    def migrate(connection: Connection) -> None:
        connection.execute(text(f"SELECT pg_advisory_lock({_ADVISORY_LOCK})"))
        connection.execute(text(f"SET lock_timeout = '{lock_timeout}'"))
        connection.commit()
        step(_config(connection))

    engine = connect_engine(url, pool_size=1, statement_timeout_s=None)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(migrate)
    finally:
        await engine.dispose()


def upgrade(url: str, revision: str = "head", *, lock_timeout: str = LOCK_TIMEOUT) -> None:
    """Bring the database at a libpq URL up to `revision`; one runner at a time, others wait.

    lock_timeout: longest wait for a table that running processes use, so that none queues behind it.
    """
    asyncio.run(_run(url, lambda config: command.upgrade(config, revision), lock_timeout=lock_timeout))


def downgrade(url: str, revision: str = "base") -> None:
    """Take the database back to `revision`, dropping what came after it."""
    asyncio.run(_run(url, lambda config: command.downgrade(config, revision)))


def main(arguments: list[str]) -> None:
    verb, revision = (*arguments, *("upgrade", "head")[len(arguments) :])[:2]
    own = settings()
    url = (own.migration_database_url or own.database_url).get_secret_value()
    {"upgrade": upgrade, "downgrade": downgrade}[verb](url, revision)


if __name__ == "__main__":
    main(sys.argv[1:])
