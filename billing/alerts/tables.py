"""Tables of alerts. `alert_due` is written by triggers of `allowance` and `lease` alone."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from app.core.database import PicosType, metadata

_MOMENT = DateTime(timezone=True)
_PENDING = text("status = 'pending'")


def _tenant_id() -> Column[str]:
    return Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False)


alert_endpoint = Table(
    "alert_endpoint",
    metadata,
    Column("id", Text, primary_key=True),
    _tenant_id(),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("status", Text, nullable=False, server_default="active"),
    Column("disabled_because", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    Index("alert_endpoint_by_tenant", "tenant_id", "id"),
)

alert_secret = Table(
    "alert_secret",
    metadata,
    Column("endpoint_id", Text, ForeignKey("alert_endpoint.id"), primary_key=True),
    Column("secret", LargeBinary, nullable=False),
)

alert_rule = Table(
    "alert_rule",
    metadata,
    Column("id", Text, primary_key=True),
    _tenant_id(),
    Column("scope_kind", Text),
    Column("scope_id", Text),
    Column("what", Text),
    Column("window_kind", Text),
    Column("percents", ARRAY(SmallInteger), nullable=False),
    Column("remaining", PicosType),
    Column("created_by", Text, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    UniqueConstraint("tenant_id", "scope_kind", "scope_id", "what", "window_kind", name="alert_rule_once"),
)

alert = Table(
    "alert",
    metadata,
    Column("id", Text, primary_key=True),
    _tenant_id(),
    Column("allowance_id", Text, ForeignKey("allowance.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("threshold", PicosType, nullable=False),
    Column("scope_kind", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("scope_name", Text),
    Column("model_id", Text),
    Column("what", Text, nullable=False),
    Column("window_kind", Text, nullable=False),
    Column("period_start", _MOMENT),
    Column("period_end", _MOMENT),
    Column("currency", Text),
    Column("limit_amount", PicosType, nullable=False),
    Column("spent", PicosType, nullable=False),
    Column("outstanding", PicosType, nullable=False),
    Column("at", _MOMENT, nullable=False),
    Column("rearmed_at", _MOMENT),
    Index(
        "alert_once",
        "allowance_id",
        "kind",
        "threshold",
        unique=True,
        postgresql_where=text("rearmed_at IS NULL"),
    ),
    Index("alert_by_tenant", "tenant_id", "id"),
)

alert_delivery = Table(
    "alert_delivery",
    metadata,
    Column("id", Text, primary_key=True),
    _tenant_id(),
    Column("endpoint_id", Text, ForeignKey("alert_endpoint.id"), nullable=False),
    Column("alert_id", Text, ForeignKey("alert.id")),
    Column("status", Text, nullable=False, server_default="pending"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_at", _MOMENT, nullable=False),
    Column("last_status", SmallInteger),
    Column("last_error", Text),
    Column("created_at", _MOMENT, nullable=False),
    Column("ended_at", _MOMENT),
    UniqueConstraint("endpoint_id", "alert_id"),
    Index("alert_delivery_due", "endpoint_id", "next_at", postgresql_where=_PENDING),
    Index("alert_delivery_waiting", "created_at", postgresql_where=_PENDING),
    Index("alert_delivery_dead", "tenant_id", "id", postgresql_where=text("status = 'dead'")),
    Index("alert_delivery_by_tenant", "tenant_id", "id"),
    Index("alert_delivery_by_alert", "alert_id"),
)

alert_watch = Table(
    "alert_watch",
    metadata,
    Column("allowance_id", Text, ForeignKey("allowance.id"), primary_key=True),
    Column("level", PicosType),
)

alert_due = Table("alert_due", metadata, Column("allowance_id", Text, primary_key=True))

alert_sweep = Table(
    "alert_sweep",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("version", BigInteger, nullable=False, server_default="1"),
    Column("after", Text, nullable=False, server_default=""),
)
