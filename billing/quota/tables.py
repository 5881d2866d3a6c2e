"""The tables of quota. They are written through the functions of their migration, which lock in one order."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, DateTime, ForeignKey, Table, Text

from app.core.database import PicosType, metadata

allowance = Table(
    "allowance",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("scope_kind", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("window_kind", Text, nullable=False),
    Column("limit_amount", PicosType, nullable=False),
    Column("spent", PicosType, nullable=False),
    Column("unleased", PicosType, nullable=False),
    Column("recall_until", DateTime(timezone=True)),
    Column("created_at", DateTime(timezone=True), nullable=False),
)

incarnation = Table(
    "incarnation",
    metadata,
    Column("id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("released", Boolean, nullable=False),
    Column("last_sequence", BigInteger, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("synced_at", DateTime(timezone=True)),
    Column("closed_at", DateTime(timezone=True)),
)

lease = Table(
    "lease",
    metadata,
    Column("allowance_id", Text, ForeignKey("allowance.id"), primary_key=True),
    Column("incarnation_id", Text, ForeignKey("incarnation.id"), primary_key=True),
    Column("granted", PicosType, nullable=False),
    Column("settled", PicosType, nullable=False),
    Column("returned", PicosType, nullable=False),
    Column("uncovered", PicosType, nullable=False),
)
