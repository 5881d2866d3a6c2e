"""SQLAlchemy's engine and column types for every process but the data plane (which uses asyncpg).

Services take an `AsyncConnection` and never commit; the edge (a route, a task, a settler's batch)
opens one transaction around them.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import Dialect, MetaData, Numeric, TypeDecorator
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

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


def connect_engine(libpq_url: str, *, pool_size: int = 8) -> AsyncEngine:
    """A pooled engine on a libpq URL. Nothing is connected yet."""
    return create_async_engine(sqlalchemy_url(libpq_url), pool_size=pool_size, pool_pre_ping=True)
