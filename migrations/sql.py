"""Runs a script of several statements within the migration's transaction."""

from __future__ import annotations

from alembic import op


def run(script: str) -> None:
    """Execute a script of SQL statements.

    A prepared statement holds one command only, so the script goes through the driver's simple
    protocol; the statement before it makes sure that the migration's transaction is open.
    """
    bind = op.get_bind()
    bind.exec_driver_sql("SELECT 1")
    adapted = bind.connection.dbapi_connection
    assert adapted is not None
    adapted.run_async(lambda driver: driver.execute(script))
