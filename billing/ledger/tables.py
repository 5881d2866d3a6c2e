"""Tables of wallets and of the double entry behind them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    SmallInteger,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy import UniqueConstraint as Unique

from app.core.database import PicosType, metadata
from billing.metering.model import Meter

_MOMENT = DateTime(timezone=True)

wallet = Table(
    "wallet",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False, unique=True),
    Column("currency", Text, nullable=False),
    Column("credit_limit", PicosType, nullable=False, server_default="0"),
    Column("allowance_id", Text, ForeignKey("allowance.id"), nullable=False, unique=True),
    Column("created_at", _MOMENT, nullable=False, server_default=func.now()),
)

wallet_grant = Table(
    "wallet_grant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("wallet_id", Text, ForeignKey("wallet.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("amount", PicosType, nullable=False),
    Column("reason", Text, nullable=False),
    Column("reference", Text, nullable=False),
    Column("transaction_id", Text, ForeignKey("ledger_transaction.id"), nullable=False, unique=True),
    Column("created_by", Text, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
    Column("priority", SmallInteger, nullable=False, server_default="100"),
    Column("starts_at", _MOMENT, nullable=False, server_default=func.now()),
    Column("expires_at", _MOMENT),
    Unique("wallet_id", "reference"),
    Index("wallet_grant_by_wallet", "wallet_id", "id"),
    Index("wallet_grant_by_start", "starts_at"),
    Index("wallet_grant_by_expiry", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)

usage_correction = Table(
    "usage_correction",
    metadata,
    Column("id", Text, primary_key=True),
    Column("request_id", Text, ForeignKey("usage_event.request_id"), nullable=False),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("amount", PicosType, nullable=False),
    Column("currency", Text, nullable=False),
    *(Column(f"billed_{meter.value}", BigInteger, nullable=False, server_default="0") for meter in Meter),
    Column("reason", Text, nullable=False),
    Column("reference", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("at", _MOMENT, nullable=False),
    Column("transaction_id", Text, ForeignKey("ledger_transaction.id"), nullable=False, unique=True),
    Unique("tenant_id", "reference"),
    Index("usage_correction_by_request", "request_id", "id"),
    Index("usage_correction_by_tenant", "tenant_id", "id"),
    Index("usage_correction_by_time", "tenant_id", "at"),
)

wallet_move = Table(
    "wallet_move",
    metadata,
    Column("wallet_id", Text, ForeignKey("wallet.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("grant_id", Text, ForeignKey("wallet_grant.id")),
    Column("correction_id", Text, ForeignKey("usage_correction.id"), unique=True),
    Column("amount", PicosType, nullable=False),
    Column("spent", PicosType, nullable=False),
    Column("at", _MOMENT, nullable=False),
    Column("transaction_id", Text, ForeignKey("ledger_transaction.id"), unique=True),
)

ledger_checkpoint = Table(
    "ledger_checkpoint",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("through", _MOMENT, nullable=False),
    Column("balance", PicosType, nullable=False),
    Column("proven_in_full_at", _MOMENT, nullable=False),
)

ledger_account = Table(
    "ledger_account",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Unique("tenant_id", "kind", "currency"),
)

ledger_transaction = Table(
    "ledger_transaction",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("ref_type", Text, nullable=False),
    Column("ref_id", Text, nullable=False),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("at", _MOMENT, nullable=False),
    Column("entry_count", SmallInteger, nullable=False),
    Unique("kind", "ref_type", "ref_id"),
    Index("ledger_transaction_by_tenant", "tenant_id", "at", "id"),
)

ledger_entry = Table(
    "ledger_entry",
    metadata,
    Column("transaction_id", Text, ForeignKey("ledger_transaction.id"), primary_key=True),
    Column("account_id", BigInteger, ForeignKey("ledger_account.id"), primary_key=True, autoincrement=False),
    Column("amount", PicosType, nullable=False),
    Index("ledger_entry_by_account", "account_id", "transaction_id"),
)
