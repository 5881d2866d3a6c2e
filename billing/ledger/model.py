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

from app.core.ids import (
    AllowanceId,
    CorrectionId,
    GrantId,
    RequestId,
    TenantId,
    TransactionId,
    WalletId,
)


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

    @property
    def heir(self) -> AccountKind:
        """The account that gets what expires: what was paid for is earned, a gift was never given."""
        return AccountKind.BREAKAGE if self is GrantKind.PURCHASED else AccountKind.PROMO


class MoveKind(StrEnum):
    """What moves a wallet's limit; `ended` moves nothing: no more of an expired grant remains."""

    STARTED = "started"
    EXPIRED = "expired"
    ENDED = "ended"
    RETURNED = "returned"
    CHARGED = "charged"


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


class Terms(msgspec.Struct, frozen=True):
    """How a grant burns: lower priorities first, in [starts_at, expires_at).

    starts_at: None is now.   expires_at: None is never.
    """

    priority: int = 100
    starts_at: datetime | None = None
    expires_at: datetime | None = None


class Grant(msgspec.Struct, frozen=True):
    """Money put into a wallet, once per reference; usable in [starts_at, expires_at)."""

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


class Move(msgspec.Struct, frozen=True):
    """A change of a wallet's limit beside its credit, in picos; numbered from 1 in the wallet's own order.

    spent: what the wallet's allowance had spent when it was made.
    """

    wallet_id: WalletId
    number: int
    kind: MoveKind
    grant_id: GrantId | None
    correction_id: CorrectionId | None
    amount: int
    spent: int
    at: datetime
    transaction_id: TransactionId | None


class BilledTokens(msgspec.Struct, frozen=True):
    """By how much a correction changes the billed tokens of each class."""

    billed_input: int = 0
    billed_input_cached: int = 0
    billed_input_cache_write: int = 0
    billed_output: int = 0


class Correction(msgspec.Struct, frozen=True):
    """A change of what one usage event costs.   amount: picos; > 0 goes back to the tenant, < 0 is charged.

    billed_…: by how much the billed tokens of a class change.
    """

    id: CorrectionId
    request_id: RequestId
    tenant_id: TenantId
    amount: int
    currency: str
    billed_input: int
    billed_input_cached: int
    billed_input_cache_write: int
    billed_output: int
    reason: str
    reference: str
    created_by: str
    at: datetime
    transaction_id: TransactionId


class Balance(msgspec.Struct, frozen=True):
    """What a wallet holds, in picos.

    posted: started grants − expired − posted usage ± corrections.
    held: lent to gateway processes, in use or free there.
    available: what can still be lent: posted + credit_limit − held; below zero after an overrun.
    """

    posted: int
    held: int
    available: int
    credit_limit: int
    currency: str


class Drift(msgspec.Struct, frozen=True):
    """A wallet whose balance is not the same in each place that tells it, in picos.

    by_grants_and_events: its moves (what grants and corrections brought and expiry took) less its events.
    """

    wallet_id: WalletId
    currency: str
    by_grants_and_events: int
    by_ledger: int
    by_allowance: int
