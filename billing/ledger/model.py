"""The words of the ledger, and its sign: a positive amount credits an account, a negative one debits it.

So `wallet`, `revenue`, `breakage`, `tax`, `accrued` (what we owe or earned) grow by positive amounts;
`cash`, `receivable`, `promo` (what we have, are owed, or gave away) grow by negative ones. A purchase is
cash −, wallet +; a promotion is promo −, wallet +; usage is wallet −, revenue +. Every transaction sums
to zero in each currency.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from app.core.ids import AllowanceId, GrantId, TenantId, TransactionId, WalletId


class AccountKind(StrEnum):
    """Where value sits; each tenant has one account of a kind in a currency."""

    WALLET = "wallet"
    PROMO = "promo"
    RECEIVABLE = "receivable"
    ACCRUED = "accrued"
    REVENUE = "revenue"
    BREAKAGE = "breakage"
    TAX = "tax"
    CASH = "cash"
    ROUNDING = "rounding"


class GrantKind(StrEnum):
    """Where a wallet's money comes from: paid for, or given."""

    PURCHASED = "purchased"
    PROMO = "promo"

    @property
    def source(self) -> AccountKind:
        """The account that a grant of this kind debits."""
        return AccountKind.CASH if self is GrantKind.PURCHASED else AccountKind.PROMO


class Reference(msgspec.Struct, frozen=True):
    """What a transaction is the posting of; one reference is posted once."""

    kind: str
    ref_type: str
    ref_id: str


class Transaction(msgspec.Struct, frozen=True):
    """A balanced set of entries of one tenant in one currency: picos by account."""

    id: TransactionId
    reference: Reference
    tenant_id: TenantId
    currency: str
    at: datetime
    entries: Mapping[AccountKind, int]


class Wallet(msgspec.Struct, frozen=True):
    """A tenant's prepaid balance; `credit_limit` is how far below zero it may go, in picos."""

    id: WalletId
    tenant_id: TenantId
    currency: str
    credit_limit: int
    allowance_id: AllowanceId
    created_at: datetime


class Grant(msgspec.Struct, frozen=True):
    """Money put into a wallet, once per reference; usable in [starts_at, expires_at).

    priority: lower ones burn first, 0 to 1000.   expires_at: None is never.
    """

    id: GrantId
    wallet_id: WalletId
    kind: GrantKind
    amount: int
    reason: str
    reference: str
    transaction_id: TransactionId
    created_by: str
    created_at: datetime
    priority: int
    starts_at: datetime
    expires_at: datetime | None


class Balance(msgspec.Struct, frozen=True):
    """What a wallet holds, in picos.

    posted: grants − posted usage.   held: lent to gateway processes, in use or free there.
    available: what can still be lent: posted + credit_limit − held; below zero after an overrun.
    """

    posted: int
    held: int
    available: int
    credit_limit: int
    currency: str


class Drift(msgspec.Struct, frozen=True):
    """A wallet whose balance is not the same in each place that tells it, in picos."""

    wallet_id: WalletId
    currency: str
    by_grants_and_events: int
    by_ledger: int
    by_allowance: int
