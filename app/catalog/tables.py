"""Tables of what is served and by which engines."""

from __future__ import annotations

from sqlalchemy import Column, DateTime, ForeignKey, Index, Integer, Table, Text, func, text

from app.core.database import metadata

_MOMENT = DateTime(timezone=True)


def _created_at() -> Column[object]:
    return Column("created_at", _MOMENT, nullable=False, server_default=func.now())


model = Table(
    "model",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("display_name", Text, nullable=False, server_default=""),
    Column("context_limit", Integer, nullable=False),
    Column("max_output_tokens", Integer, nullable=False),
    Column("default_output_tokens", Integer, nullable=False),
    Column("status", Text, nullable=False, server_default="draft"),
    _created_at(),
    Column("tokenizer", Text),
)

deployment = Table(
    "deployment",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model_id", Text, ForeignKey("model.id"), nullable=False, unique=True),
    Column("policy", Text, nullable=False, server_default="least_predicted_wait"),
    _created_at(),
)

backend = Table(
    "backend",
    metadata,
    Column("id", Text, primary_key=True),
    Column("deployment_id", Text, ForeignKey("deployment.id"), nullable=False),
    Column("base_url", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("served_model", Text, nullable=False),
    Column("max_concurrent", Integer, nullable=False, server_default="64"),
    Column("weight", Integer, nullable=False, server_default="100"),
    Column("status", Text, nullable=False, server_default="active"),
    _created_at(),
    Index(
        "backend_address",
        "deployment_id",
        "base_url",
        unique=True,
        postgresql_where=text("status <> 'removed'::text"),
    ),
)
