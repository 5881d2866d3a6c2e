"""`/tenants/{id}/wallet` and `/wallets`: balances, grants, credit limits, entries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Depends
from pydantic import Field

from app.control.call import Call, Reads, WritesMoney
from app.control.schemas import In, Money, Name, Out, Page, PagingQuery, picos
from app.control.views.routes import router
from app.core.ids import WalletId
from app.core.money import format_picos
from app.identity.errors import invalid, not_found
from app.identity.model import Scope
from app.identity.tenants import get_tenant
from app.insights import entries
from billing.ledger import service as ledger
from billing.ledger.model import Grant, GrantKind, Wallet

api = router("wallets")


class WalletOut(Out):
    """A prepaid balance: `available = posted + credit_limit − held`."""

    id: str
    tenant_id: str
    currency: str
    credit_limit: str = Field(examples=["0"])
    posted: str = Field(examples=["9.99999732"], description="Grants less posted usage.")
    held: str = Field(examples=["0"], description="Lent to gateway processes: in use or free there.")
    available: str = Field(examples=["9.99999732"], description="What can still be lent.")


class WalletPatch(In):
    credit_limit: Money = Field(description="How far below zero the balance may go.")


class GrantIn(In):
    amount: Money = Field(examples=["10"], description="More than zero.")
    kind: GrantKind = Field(description="`purchased`: paid for; `promo`: given.")
    reason: Name = Field(examples=["Order 4711"])
    reference: Name | None = Field(
        None, description="What is granted once per wallet; null: the Idempotency-Key."
    )


class GrantOut(Out):
    id: str
    wallet_id: str
    kind: GrantKind
    amount: str
    currency: str
    reason: str
    reference: str
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
    granted = await ledger.grant(
        call.connection,
        wallet_id=wallet.id,
        amount=amount,
        kind=body.kind,
        reason=body.reason,
        reference=body.reference or f"{call.actor.id}:{call.idempotency_key}",
        created_by=call.actor.id,
    )
    shown = _grant(granted, currency=wallet.currency)
    call.trail.note(
        "wallet.grant", wallet.id, tenant_id=wallet.tenant_id, after=shown.model_dump(mode="json")
    )
    return shown


@api.get("/wallets/{wallet_id}/grants", summary="List a wallet's grants")
async def list_grants(
    wallet_id: str, paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.WALLETS_READ))]
) -> Page[GrantOut]:
    wallet = await _wallet(call, wallet_id)
    rows = await ledger.list_grants(call.connection, wallet.id, after=paging.after, limit=paging.fetch)
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
    balance = await ledger.balance(call.connection, wallet.id)
    return WalletOut(
        id=wallet.id,
        tenant_id=wallet.tenant_id,
        currency=wallet.currency,
        credit_limit=format_picos(balance.credit_limit),
        posted=format_picos(balance.posted),
        held=format_picos(balance.held),
        available=format_picos(balance.available),
    )


def _grant(grant: Grant, *, currency: str) -> GrantOut:
    return GrantOut(
        id=grant.id,
        wallet_id=grant.wallet_id,
        kind=grant.kind,
        amount=format_picos(grant.amount),
        currency=currency,
        reason=grant.reason,
        reference=grant.reference,
        transaction_id=grant.transaction_id,
        created_by=grant.created_by,
        created_at=grant.created_at,
    )
