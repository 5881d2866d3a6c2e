"""Tables of people, their tenants and credentials, and of the audit log."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Index,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.core.database import metadata

_MOMENT = DateTime(timezone=True)


def _created_at() -> Column[object]:
    return Column("created_at", _MOMENT, nullable=False, server_default=func.now())


tenant = Table(
    "tenant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("timezone", Text, nullable=False, server_default="UTC"),
    Column("status", Text, nullable=False, server_default="active"),
    Column("price_book_id", Text, ForeignKey("price_book.id")),
    _created_at(),
    Column("on_suspend", Text, nullable=False, server_default="finish"),
)

project = Table(
    "project",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("status", Text, nullable=False, server_default="active"),
    _created_at(),
    Column("clamp_output", Boolean, nullable=False, server_default="false"),
    UniqueConstraint("tenant_id", "name"),
)

member = Table(
    "member",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id")),
    Column("email", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False, server_default=""),
    Column("role", Text, nullable=False),
    Column("password_hash", Text),
    Column("status", Text, nullable=False, server_default="active"),
    _created_at(),
)

session = Table(
    "session",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("member_id", Text, ForeignKey("member.id"), nullable=False),
    _created_at(),
    Column("expires_at", _MOMENT, nullable=False),
)

access_token = Table(
    "access_token",
    metadata,
    Column("id", Text, primary_key=True),
    Column("member_id", Text, ForeignKey("member.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("last_four", Text, nullable=False),
    _created_at(),
    Column("expires_at", _MOMENT),
    Column("revoked_at", _MOMENT),
)

api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("project_id", Text, ForeignKey("project.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("prefix", Text, nullable=False),
    Column("last_four", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False, server_default="{inference,usage:read}"),
    Column("models", ARRAY(Text)),
    _created_at(),
    Column("created_by", Text),
    Column("expires_at", _MOMENT),
    Column("revoked_at", _MOMENT),
    Column("rotated_from", Text, ForeignKey("api_key.id")),
    Index("api_key_by_project", "project_id", "id"),
)

idempotency_key = Table(
    "idempotency_key",
    metadata,
    Column("actor", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("request_hash", LargeBinary, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("response", JSONB, nullable=False),
    _created_at(),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at", _MOMENT, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("object_type", Text, nullable=False),
    Column("object_id", Text, nullable=False),
    Column("tenant_id", Text),
    Column("before", JSONB),
    Column("after", JSONB),
    Column("from_address", Text),
    Column("previous_hash", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Index("audit_log_by_object", "object_type", "object_id", "sequence"),
)
