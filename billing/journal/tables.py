"""Tables that the settler fills: usage events and their roll-ups, refusals, and what was set aside."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.core.database import PicosType, metadata

_MOMENT = DateTime(timezone=True)
_CLASSES = ("input", "input_cached", "input_cache_write", "output", "reasoning")
_BILLED = ("billed_input", "billed_input_cached", "billed_input_cache_write", "billed_output")


def _counts(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False) for name in names]


usage_event = Table(
    "usage_event",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("project_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model_id", Text, nullable=False),
    Column("model_name", Text, nullable=False),
    Column("deployment_id", Text, nullable=False),
    Column("backend_id", Text),
    Column("incarnation_id", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("choices", SmallInteger, nullable=False),
    Column("prompts", Integer, nullable=False),
    Column("admitted_at", _MOMENT, nullable=False),
    Column("settled_at", _MOMENT, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("usage_source", Text, nullable=False),
    *_counts(*_CLASSES, *_BILLED),
    Column("unknown_bound", JSONB),
    Column("cost", PicosType, nullable=False),
    Column("currency", Text, nullable=False),
    Column("price_version_id", Text, nullable=False),
    Column("rates", JSONB, nullable=False),
    Column("hold", PicosType, nullable=False),
    Column("unleased", PicosType, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("error_code", Text),
    Column("finish_reason", Text),
    Column("ttft_ms", BigInteger),
    *_counts("duration_ms", "bytes_relayed"),
    Column("flags", ARRAY(Text), nullable=False),
    Column("attempts", JSONB, nullable=False),
    Column("holds", JSONB, nullable=False),
    Column("payload_hash", LargeBinary, nullable=False),
    Column("transaction_id", Text),
    Column("posted_at", _MOMENT, nullable=False),
    Column("task_id", Text),
    Index("usage_event_by_tenant", "tenant_id", "request_id"),
    Index("usage_event_by_moment", "admitted_at", postgresql_using="brin"),
    Index(
        "usage_event_by_transaction",
        "transaction_id",
        postgresql_where=text("transaction_id IS NOT NULL"),
    ),
    Index("usage_event_by_task", "task_id", "request_id", postgresql_where=text("task_id IS NOT NULL")),
)

usage_rollup = Table(
    "usage_rollup",
    metadata,
    Column("bucket", _MOMENT, primary_key=True),
    Column("tenant_id", Text, primary_key=True),
    Column("project_id", Text, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("model_id", Text, primary_key=True),
    Column("price_version_id", Text, primary_key=True),
    Column("currency", Text, primary_key=True),
    Column("usage_source", Text, primary_key=True),
    *_counts("requests", *_CLASSES, *_BILLED),
    Column("cost", PicosType, nullable=False),
    Index("usage_rollup_by_tenant", "tenant_id", "bucket"),
)

refusal = Table(
    "refusal",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("project_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("incarnation_id", Text, nullable=False),
    Column("at", _MOMENT, nullable=False),
    Column("model_name", Text),
    Column("endpoint", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("limit_value", Text),
    Column("observed_value", Text),
    Column("retry_after_ms", BigInteger),
    Column("allowance_id", Text),
    Column("facts", JSONB),
    Index("refusal_by_tenant", "tenant_id", "request_id"),
    Index("refusal_by_allowance", "allowance_id", "at", postgresql_where=text("allowance_id IS NOT NULL")),
)

usage_conflict = Table(
    "usage_conflict",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("payload_hash", LargeBinary, primary_key=True),
    Column("incarnation_id", Text, nullable=False),
    Column("posted_hash", LargeBinary, nullable=False),
    Column("admitted", LargeBinary),
    Column("settled", LargeBinary, nullable=False),
    Column("seen_at", _MOMENT, nullable=False),
)

parked_record = Table(
    "parked_record",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("incarnation_id", Text, nullable=False),
    Column("file_offset", BigInteger, nullable=False),
    Column("request_id", Text),
    Column("reason", Text, nullable=False),
    Column("admitted", LargeBinary),
    Column("record", LargeBinary, nullable=False),
    Column("holds", JSONB, nullable=False),
    Column("parked_at", _MOMENT, nullable=False),
    Column("resolved_at", _MOMENT),
    Column("resolution", Text),
    Column("resolved_by", Text),
    Column("resolved_because", Text),
    UniqueConstraint("incarnation_id", "file_offset"),
    Index("parked_record_open", "incarnation_id", postgresql_where=text("resolved_at IS NULL")),
    Index("parked_record_by_request", "request_id"),
)

journal_damage = Table(
    "journal_damage",
    metadata,
    Column("incarnation_id", Text, primary_key=True),
    Column("file_offset", BigInteger, primary_key=True),
    Column("byte_count", BigInteger, nullable=False),
    Column("found_at", _MOMENT, nullable=False),
    Column("released_at", _MOMENT),
    Column("released_by", Text),
    Column("released_because", Text),
)

journal_position = Table(
    "journal_position",
    metadata,
    Column("incarnation_id", Text, primary_key=True),
    Column("posted_offset", BigInteger, nullable=False),
    Column("resume_offset", BigInteger, nullable=False),
    Column("posted_at", _MOMENT, nullable=False),
)
