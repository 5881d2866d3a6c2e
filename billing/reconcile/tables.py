"""Tables of reconciliation: engines' counters, their days against the events, proofs and their gaps."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.core.database import metadata

_MOMENT = DateTime(timezone=True)

engine_reading = Table(
    "engine_reading",
    metadata,
    Column("backend_id", Text, ForeignKey("backend.id"), primary_key=True),
    Column("at", _MOMENT, primary_key=True),
    Column("process", Text),
    Column("prompt", BigInteger),
    Column("cached", BigInteger),
    Column("generated", BigInteger),
    Column("finished", BigInteger),
)

engine_day = Table(
    "engine_day",
    metadata,
    Column("day", Date, primary_key=True),
    Column("backend_id", Text, ForeignKey("backend.id"), primary_key=True),
    Column("meter", Text, primary_key=True),
    Column("model_id", Text, ForeignKey("model.id"), nullable=False),
    Column("model_name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("begins_at", _MOMENT),
    Column("ends_at", _MOMENT),
    Column("readings", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("counted", BigInteger),
    Column("recorded", BigInteger, nullable=False),
    Column("billed", BigInteger, nullable=False),
    Column("explained", JSONB, nullable=False),
    Column("unexplained", BigInteger),
    Column("requests", BigInteger, nullable=False),
    Column("lost", BigInteger, nullable=False),
    Column("is_final", Boolean, nullable=False),
    Column("computed_at", _MOMENT, nullable=False),
    Index("engine_day_by_backend", "backend_id", "day"),
)

reconcile_proof = Table(
    "reconcile_proof",
    metadata,
    Column("pair", Text, nullable=False),
    Column("day", Date),
    Column("proven_at", _MOMENT, nullable=False),
    Column("scanned", BigInteger, nullable=False),
    Column("gaps", Integer, nullable=False),
    Column("took_ms", Integer, nullable=False),
    UniqueConstraint("pair", "day", postgresql_nulls_not_distinct=True),
)

reconcile_gap = Table(
    "reconcile_gap",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("pair", Text, nullable=False),
    Column("day", Date),
    Column("scope", Text, nullable=False),
    Column("tenant_id", Text),
    Column("backend_id", Text),
    Column("model_id", Text),
    Column("unit", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("left_value", Numeric(38, 0)),
    Column("right_value", Numeric(38, 0)),
    Column("explanation", Text, nullable=False),
    Column("first_seen_at", _MOMENT, nullable=False),
    Column("last_seen_at", _MOMENT, nullable=False),
    Column("resolved_at", _MOMENT),
    Column("acknowledged_at", _MOMENT),
    Column("acknowledged_by", Text),
    Column("acknowledged_because", Text),
    Index(
        "reconcile_gap_open",
        "pair",
        "day",
        "scope",
        "unit",
        "kind",
        unique=True,
        postgresql_nulls_not_distinct=True,
        postgresql_where=text("resolved_at IS NULL"),
    ),
    Index("reconcile_gap_by_day", "day", "id"),
)
