"""Wallets: what each holds, its grants in the order in which they burn, and what was corrected."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from app.console.page import Page
from app.console.views.requests import zone_of
from app.core.ids import WalletId
from app.identity.errors import not_found
from app.identity.model import Scope, Tenant
from app.identity.tenants import get_tenant, list_tenants
from billing.ledger import service as ledger
from billing.ledger.corrections import list_corrections
from billing.ledger.model import Balance, Wallet

_MOST = 50
"""Rows of a list; the command line has them all."""


async def list_wallets(page: Page) -> Response:
    """A wallet for each tenant within reach."""
    page.actor.require(Scope.WALLETS_READ)
    tenants = await list_tenants(page.connection, within=page.member.tenant_id, after=None, limit=_MOST)
    return page.render("wallets", wallets=await wallets_of(page, tenants), most=_MOST)


async def show_wallet(page: Page) -> Response:
    """One wallet: balance, open grants, all grants newest first, corrections. Raises Rejected (404)."""
    page.actor.require(Scope.WALLETS_READ)
    wallet_id = WalletId(str(page.request.path_params["wallet_id"]))
    wallet = await ledger.find_wallet(page.connection, wallet_id)
    if wallet is None or page.member.tenant_id not in (None, wallet.tenant_id):
        not_found("wallet", wallet_id)
    now = page.site.now()
    return page.render(
        "wallet",
        tenant=await get_tenant(page.connection, wallet.tenant_id, within=page.member.tenant_id),
        wallet=wallet,
        standing=await ledger.standing(page.connection, wallet.id, now=now),
        closed=await ledger.list_closed_grants(page.connection, wallet.id, limit=_MOST, now=now),
        corrections=await list_corrections(page.connection, tenant_id=wallet.tenant_id, limit=_MOST),
        most=_MOST,
        zone=await zone_of(page),
    )


async def wallets_of(page: Page, tenants: Sequence[Tenant]) -> list[tuple[Tenant, Wallet, Balance]]:
    """Each tenant's wallet, and what it holds."""
    found = [(tenant, await ledger.find_wallet_of(page.connection, tenant.id)) for tenant in tenants]
    return [
        (tenant, wallet, await ledger.balance(page.connection, wallet.id))
        for tenant, wallet in found
        if wallet
    ]
