"""Tables of price books, their dated versions and the prices in them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    func,
    text,
)

from app.core.database import metadata

_MOMENT = DateTime(timezone=True)


def _created_at() -> Column[object]:
    return Column("created_at", _MOMENT, nullable=False, server_default=func.now())


price_book = Table(
    "price_book",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("currency", Text, nullable=False),
    Column("is_default", Boolean, nullable=False, server_default=text("false")),
    _created_at(),
    Index("price_book_default", "currency", unique=True, postgresql_where=text("is_default")),
)

price_version = Table(
    "price_version",
    metadata,
    Column("id", Text, primary_key=True),
    Column("price_book_id", Text, ForeignKey("price_book.id"), nullable=False),
    Column("status", Text, nullable=False, server_default="draft"),
    Column("effective_from", _MOMENT),
    Column("effective_to", _MOMENT),
    Column("note", Text, nullable=False, server_default=""),
    _created_at(),
    Column("published_at", _MOMENT),
)

price = Table(
    "price",
    metadata,
    Column("price_version_id", Text, ForeignKey("price_version.id"), primary_key=True),
    Column("model_id", Text, ForeignKey("model.id"), primary_key=True),
    Column("meter", Text, primary_key=True),
    Column("service_tier", Text, primary_key=True, server_default="standard"),
    Column("context_band", Integer, primary_key=True, autoincrement=False, server_default="0"),
    Column("micros_per_mtok", BigInteger, nullable=False),
)
