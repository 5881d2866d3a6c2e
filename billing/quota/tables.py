"""The tables of quota. They are written through the functions of their migration, which lock in one order."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Table,
    Text,
    UniqueConstraint,
    func,
)

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
    Column("model_id", Text, ForeignKey("model.id")),
    Column("burst", PicosType),
    Column("level_micros", PicosType),
    Column("level_at", DateTime(timezone=True)),
    Column("period_start", DateTime(timezone=True)),
    Column("period_end", DateTime(timezone=True)),
    Column("limit_source", Text),
    Column("ended_at", DateTime(timezone=True)),
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
    Column("epoch", BigInteger, nullable=False),
    Column("heard_at", DateTime(timezone=True)),
)

task = Table(
    "task",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("project_id", Text, ForeignKey("project.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("declared", PicosType),
    Column("budget", PicosType),
    Column("spent_before", PicosType, nullable=False, server_default="0"),
    Column(
        "allowance_id",
        Text,
        ForeignKey("allowance.id", deferrable=True, initially="DEFERRED"),
        unique=True,
    ),
    Column("status", Text, nullable=False, server_default="open"),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("created_by_key", Text),
    Column("closed_at", DateTime(timezone=True)),
    UniqueConstraint("project_id", "name"),
    Index("task_by_tenant", "tenant_id", "id"),
)

plan = Table(
    "plan",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("description", Text, nullable=False, server_default=""),
    Column("currency", Text),
    Column("price_book_id", Text, ForeignKey("price_book.id")),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("archived_at", DateTime(timezone=True)),
)

plan_limit = Table(
    "plan_limit",
    metadata,
    Column("plan_id", Text, ForeignKey("plan.id"), nullable=False),
    Column("level", Text, nullable=False),
    Column("model_id", Text, ForeignKey("model.id")),
    Column("what", Text, nullable=False),
    Column("window_kind", Text, nullable=False),
    Column("amount", PicosType, nullable=False),
    Column("burst", PicosType),
)

plan_assignment = Table(
    "plan_assignment",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("plan_id", Text, ForeignKey("plan.id"), nullable=False),
    Column("effective_from", DateTime(timezone=True), nullable=False),
    Column("effective_to", DateTime(timezone=True)),
    Column("created_by", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

limit_override = Table(
    "limit_override",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("scope_kind", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("model_id", Text, ForeignKey("model.id")),
    Column("what", Text, nullable=False),
    Column("window_kind", Text, nullable=False),
    Column("amount", PicosType),
    Column("burst", PicosType),
    Column("effective_from", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True)),
    Column("reason", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("revoked_at", DateTime(timezone=True)),
)

tenant_limits = Table(
    "tenant_limits",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("next_change_at", DateTime(timezone=True)),
)
