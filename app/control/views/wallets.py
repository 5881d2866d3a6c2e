"""`/tenants/{id}/wallet` and `/wallets`: balances, grants, credit limits, entries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Depends
from pydantic import Field

from app.control.call import Call, Reads, WritesMoney
from app.control.schemas import In, Moment, Money, Name, Out, Page, PagingQuery, picos
from app.control.views.routes import router
from app.core.ids import WalletId
from app.core.money import format_picos
from app.identity.errors import invalid, not_found
from app.identity.model import Scope
from app.identity.tenants import get_tenant
from app.insights import entries
from billing.ledger import service as ledger
from billing.ledger.model import GrantKind, Terms, Wallet
from billing.ledger.standing import GrantStanding, GrantState

api = router("wallets")


class ExpiringOut(Out):
    """What expires next, less what is used until then."""

    at: datetime
    amount: str


class WalletOut(Out):
    """A prepaid balance: `available = posted + credit_limit − held`."""

    id: str
    tenant_id: str
    currency: str
    credit_limit: str = Field(examples=["0"])
    posted: str = Field(
        examples=["9.99999732"], description="Grants less what expired, less posted usage, corrected."
    )
    held: str = Field(examples=["0"], description="Lent to gateway processes: in use or free there.")
    available: str = Field(examples=["9.99999732"], description="What can still be lent.")
    returned: str = Field(examples=["0"], description="What corrections gave back and nothing has used.")
    expires_next: ExpiringOut | None


class WalletPatch(In):
    credit_limit: Money = Field(description="How far below zero the balance may go.")


class GrantIn(In):
    amount: Money = Field(examples=["10"], description="More than zero.")
    kind: GrantKind = Field(description="`purchased`: paid for; `promo`: given.")
    reason: Name = Field(examples=["Order 4711"])
    reference: Name | None = Field(
        None, description="What is granted once per wallet; null: the Idempotency-Key."
    )
    priority: int = Field(
        100, ge=0, le=1000, description="Lower burns first; then what expires first, then what is older."
    )
    starts_at: Moment | None = Field(None, description="Included; null: now.")
    expires_at: Moment | None = Field(None, description="Not included; null: never.")


class GrantOut(Out):
    """A grant and where its money is: `remaining + burned + expired = amount` once it has started.

    `lingering`: it has expired, and what remains is held by requests that may still use it.
    """

    id: str
    wallet_id: str
    kind: GrantKind
    amount: str
    currency: str
    reason: str
    reference: str
    priority: int
    starts_at: datetime
    expires_at: datetime | None
    state: GrantState
    remaining: str
    burned: str
    expired: str
    transaction_id: str
    created_by: str
    created_at: datetime


class EntryOut(Out):
    """One leg of a transaction on the wallet: positive fills it, negative empties it."""

    transaction_id: str
    kind: str
    ref_type: str
    ref_id: str
    at: datetime
    amount: str
    currency: str


@api.get("/tenants/{tenant_id}/wallet", summary="Show a tenant's wallet and balance")
async def show_wallet(tenant_id: str, call: Annotated[Call, Depends(Reads(Scope.WALLETS_READ))]) -> WalletOut:
    tenant = await get_tenant(call.connection, tenant_id, within=call.within)
    wallet = await ledger.find_wallet_of(call.connection, tenant.id)
    if wallet is None:
        not_found("wallet of tenant", tenant_id)
    return await _shown(call, wallet)


@api.patch("/wallets/{wallet_id}", summary="Set a wallet's credit limit")
async def change_wallet(
    wallet_id: str, body: WalletPatch, call: Annotated[Call, Depends(WritesMoney(Scope.CREDIT_WRITE))]
) -> WalletOut:
    before = await _wallet(call, wallet_id)
    limit = picos(body.credit_limit)
    if limit < 0:
        invalid("A credit limit is zero or more.", param="credit_limit")
    await ledger.set_credit_limit(call.connection, before.id, credit_limit=limit)
    call.trail.note(
        "wallet.set_credit_limit",
        before.id,
        tenant_id=before.tenant_id,
        before={"credit_limit": format_picos(before.credit_limit)},
        after={"credit_limit": format_picos(limit)},
    )
    return await _shown(call, await _wallet(call, wallet_id))


@api.post("/wallets/{wallet_id}/grants", status_code=201, summary="Put money into a wallet")
async def create_grant(
    wallet_id: str, body: GrantIn, call: Annotated[Call, Depends(WritesMoney(Scope.CREDIT_WRITE))]
) -> GrantOut:
    wallet = await _wallet(call, wallet_id)
    amount = picos(body.amount)
    if amount <= 0:
        invalid("A grant is more than nothing.", param="amount")
    if body.expires_at is not None and body.expires_at <= max(body.starts_at or call.now, call.now):
        invalid("A grant expires after it has started, and not in the past.", param="expires_at")
    granted = await ledger.grant(
        call.connection,
        wallet_id=wallet.id,
        amount=amount,
        kind=body.kind,
        reason=body.reason,
        reference=body.reference or f"{call.actor.id}:{call.idempotency_key}",
        created_by=call.actor.id,
        terms=Terms(body.priority, body.starts_at, body.expires_at),
        now=call.now,
    )
    standing = await ledger.grant_standing(call.connection, granted, now=call.now)
    shown = _grant(standing, currency=wallet.currency)
    call.trail.note(
        "wallet.grant", wallet.id, tenant_id=wallet.tenant_id, after=shown.model_dump(mode="json")
    )
    return shown


@api.get("/wallets/{wallet_id}/grants", summary="List a wallet's grants")
async def list_grants(
    wallet_id: str, paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.WALLETS_READ))]
) -> Page[GrantOut]:
    wallet = await _wallet(call, wallet_id)
    rows = await ledger.list_standing_grants(
        call.connection, wallet.id, after=paging.after, limit=paging.fetch, now=call.now
    )
    return paging.page(rows, lambda grant: _grant(grant, currency=wallet.currency))


@api.get("/wallets/{wallet_id}/entries", summary="List a wallet's ledger entries, newest first")
async def list_entries(
    wallet_id: str, paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.WALLETS_READ))]
) -> Page[EntryOut]:
    wallet = await _wallet(call, wallet_id)
    rows = await entries.list_wallet_entries(
        call.connection, wallet.tenant_id, before=paging.after, limit=paging.fetch
    )
    return paging.page(
        rows,
        lambda entry: EntryOut(
            transaction_id=entry.id,
            kind=entry.kind,
            ref_type=entry.ref_type,
            ref_id=entry.ref_id,
            at=entry.at,
            amount=format_picos(entry.amount),
            currency=entry.currency,
        ),
    )


async def _wallet(call: Call, wallet_id: str) -> Wallet:
    wallet = await ledger.find_wallet(call.connection, WalletId(wallet_id))
    if wallet is None or call.within not in (None, wallet.tenant_id):
        not_found("wallet", wallet_id)
    return wallet


async def _shown(call: Call, wallet: Wallet) -> WalletOut:
    standing = await ledger.standing(call.connection, wallet.id, now=call.now)
    balance, following = standing.balance, standing.expires_next
    return WalletOut(
        id=wallet.id,
        tenant_id=wallet.tenant_id,
        currency=wallet.currency,
        credit_limit=format_picos(balance.credit_limit),
        posted=format_picos(balance.posted),
        held=format_picos(balance.held),
        available=format_picos(balance.available),
        returned=format_picos(standing.returned),
        expires_next=following and ExpiringOut(at=following.at, amount=format_picos(following.amount)),
    )


def _grant(standing: GrantStanding, *, currency: str) -> GrantOut:
    grant = standing.grant
    facts = {name: getattr(grant, name) for name in grant.__struct_fields__ if name != "amount"}
    return GrantOut(
        **facts,
        amount=format_picos(grant.amount),
        currency=currency,
        state=standing.state,
        remaining=format_picos(standing.remaining),
        burned=format_picos(standing.burned),
        expired=format_picos(standing.expired),
    )
