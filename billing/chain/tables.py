"""Tables of the chain: its links, and what waits for one."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Date, DateTime, ForeignKey, Identity, LargeBinary, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY

from app.core.database import metadata

usage_link = Table(
    "usage_link",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("day", Date, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("line_id", Text, nullable=False),
    Column("previous", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
)

usage_unsealed = Table(
    "usage_unsealed",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("posted_at", DateTime(timezone=True), nullable=False),
    Column("line_ids", ARRAY(Text), nullable=False),
)
