"""SQLAlchemy's engine and column types for every process but the data plane (which uses asyncpg).

Services take an `AsyncConnection` and never commit; the edge (a route, a task, a settler's batch)
opens one transaction around them.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import Dialect, MetaData, Numeric, TypeDecorator
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

_CONNECT_TIMEOUT_S = 10.0
_ANSWER_GRACE_S = 5.0

metadata = MetaData()
"""Every room's `tables.py` registers its tables here; a test compares them with the migrations."""


class PicosType(TypeDecorator[int]):
    """An integer of picos in a NUMERIC(38, 0) column: a bigint would end at 9.2 million units."""

    impl = Numeric(38, 0)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Decimal | None:
        return None if value is None else Decimal(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        return None if value is None else int(value)


def sqlalchemy_url(libpq_url: str) -> str:
    """SQLAlchemy's form of a libpq URL: `postgresql://…` → `postgresql+asyncpg://…`."""
    scheme, _, rest = libpq_url.partition("://")
    if scheme not in ("postgresql", "postgres"):
        raise ValueError("the database URL must begin with postgresql://")
    return f"postgresql+asyncpg://{rest}"


def connect_engine(
    libpq_url: str,
    *,
    pool_size: int = 8,
    statement_timeout_s: float | None = 30.0,
    work_mem: str | None = None,
) -> AsyncEngine:
    """A pooled engine on a libpq URL. Nothing is connected yet.

    statement_timeout_s: longest time of a statement, a fraction of it for a lock, and as long again in a
    transaction that stands idle; then PostgreSQL ends it (57014, 55P03, 25P03). The driver gives up a
    little later, if nobody answers any more (TimeoutError). None: no bound at all, for migrations.
    work_mem: PostgreSQL's, where its default is too little.
    """
    return create_async_engine(
        sqlalchemy_url(libpq_url),
        pool_size=pool_size,
        pool_pre_ping=True,
        connect_args=_connect_args(statement_timeout_s, work_mem),
    )


def _connect_args(statement_timeout_s: float | None, work_mem: str | None) -> dict[str, Any]:
    arguments = _patience(statement_timeout_s)
    if work_mem is not None:
        arguments["server_settings"] = {**arguments.get("server_settings", {}), "work_mem": work_mem}
    return arguments


def _patience(statement_timeout_s: float | None) -> dict[str, Any]:
    if statement_timeout_s is None:
        return {"timeout": _CONNECT_TIMEOUT_S}
    bound_ms = round(statement_timeout_s * 1000)
    return {
        "timeout": _CONNECT_TIMEOUT_S,
        "command_timeout": statement_timeout_s + _ANSWER_GRACE_S,
        "server_settings": {
            "statement_timeout": str(bound_ms),
            "lock_timeout": str(bound_ms // 3),
            "idle_in_transaction_session_timeout": str(2 * bound_ms),
        },
    }
