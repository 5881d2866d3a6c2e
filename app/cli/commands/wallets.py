"""`steelyard wallets …`: prepaid balances."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.api import Api, connect
from app.cli.options import (
    DEFAULT_DATA_DIR,
    After,
    AsJson,
    DataDir,
    IdempotencyKey,
    Limit,
    TenantOption,
    Yes,
    noun,
    verb,
)
from app.cli.present import confirm, idempotency_key, show_page, show_record

verbs = noun(
    "wallets",
    "Prepaid balance of a tenant: posted, held for running requests, available; and the grants that fill it.",
    "steelyard wallets show",
    "steelyard wallets grant 25.00 --expires 2027-01-01T00:00:00Z --yes",
    "steelyard wallets entries --tenant ten_0193f0c2",
)
GRANTS = {
    "id": "id",
    "kind": "kind",
    "state": "state",
    "priority": "priority",
    "amount": "amount",
    "remaining": "remaining",
    "burned": "burned",
    "expired": "expired",
    "currency": "currency",
    "starts_at": "starts",
    "expires_at": "expires",
    "reason": "reason",
    "reference": "reference",
}
ENTRIES = {
    "at": "at",
    "kind": "kind",
    "amount": "amount",
    "currency": "currency",
    "transaction_id": "transaction",
    "ref_id": "for",
}


@verb(
    verbs,
    "show",
    "steelyard wallets show",
    "steelyard wallets show --tenant ten_0193f0c2",
    "steelyard wallets show --json",
)
def show(
    *, tenant: TenantOption = None, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Show what a tenant's wallet has: posted, held, available, and what expires next."""
    with connect(data_dir) as api:
        owner = tenant or api.only("/tenants", noun="tenant")
        show_record(api.get(f"/tenants/{owner}/wallet"), as_json=as_json)


@verb(
    verbs,
    "grant",
    "steelyard wallets grant 25.00",
    "steelyard wallets grant 25.00 --kind promo --priority 10 --expires 2027-01-01T00:00:00Z --yes",
    "steelyard wallets grant 25.00 --reference INV-2026-17 --idempotency-key top-up-17 --yes --json",
)
def grant(
    amount: Annotated[str, typer.Argument(help="Amount in the wallet's currency, as a decimal.")],
    *,
    tenant: TenantOption = None,
    kind: Annotated[str, typer.Option(help="purchased or promo.")] = "purchased",
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "granted by command line",
    reference: Annotated[
        str | None, typer.Option(help="Its name in your books; else the idempotency key.")
    ] = None,
    priority: Annotated[
        int, typer.Option(min=0, max=1000, help="Lower burns first; then what expires first.")
    ] = 100,
    starts: Annotated[str | None, typer.Option(help="From when it can be used; else now.")] = None,
    expires: Annotated[str | None, typer.Option(help="Until when; else for ever.")] = None,
    yes: Yes = False,
    key: IdempotencyKey = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Add an amount to a tenant's wallet, as a purchase or as a promotion."""
    with connect(data_dir) as api:
        wallet = _wallet(api, tenant)
        confirm(f"Grant {amount} {wallet['currency']} ({kind}) to {wallet['id']}?", yes=yes)
        key = idempotency_key(key)
        body = {"amount": amount, "kind": kind, "reason": reason, "priority": priority}
        further = {"reference": reference, "starts_at": starts, "expires_at": expires}
        body |= {name: value for name, value in further.items() if value}
        granted = api.post(f"/wallets/{wallet['id']}/grants", body, idempotency_key=key)
    show_record(granted, as_json=as_json)


@verb(
    verbs,
    "limit",
    "steelyard wallets limit 100.00 --yes",
    "steelyard wallets limit 0 --tenant ten_0193f0c2 --yes",
    "steelyard wallets limit 100.00 --idempotency-key limit-17 --yes --json",
)
def limit_credit(
    credit_limit: Annotated[str, typer.Argument(help="Amount in the wallet's currency, as a decimal.")],
    *,
    tenant: TenantOption = None,
    yes: Yes = False,
    key: IdempotencyKey = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Set how far below zero a wallet may go."""
    with connect(data_dir) as api:
        wallet = _wallet(api, tenant)
        confirm(f"Let {wallet['id']} go to {credit_limit} {wallet['currency']} below zero?", yes=yes)
        key = idempotency_key(key)
        changed = api.patch(f"/wallets/{wallet['id']}", {"credit_limit": credit_limit}, idempotency_key=key)
    show_record(changed, as_json=as_json)


@verb(
    verbs,
    "grants",
    "steelyard wallets grants",
    "steelyard wallets grants --tenant ten_0193f0c2",
    "steelyard wallets grants --json",
)
def grants(
    *,
    tenant: TenantOption = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List what was granted to a wallet, and what of it remains, has burned and has expired."""
    with connect(data_dir) as api:
        page = api.get(f"/wallets/{_wallet(api, tenant)['id']}/grants", limit=limit, after=after)
    show_page(page, GRANTS, as_json=as_json, empty="no grants: steelyard wallets grant AMOUNT")


@verb(
    verbs,
    "entries",
    "steelyard wallets entries",
    "steelyard wallets entries --tenant ten_0193f0c2 --limit 200",
    "steelyard wallets entries --json",
)
def entries(
    *,
    tenant: TenantOption = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List the ledger entries of a wallet, newest first."""
    with connect(data_dir) as api:
        page = api.get(f"/wallets/{_wallet(api, tenant)['id']}/entries", limit=limit, after=after)
    show_page(page, ENTRIES, as_json=as_json, empty="no entries yet")


def _wallet(api: Api, tenant: str | None) -> dict[str, str]:
    owner = tenant or api.only("/tenants", noun="tenant")
    wallet: dict[str, str] = api.get(f"/tenants/{owner}/wallet")
    return wallet
