"""Posts transactions to the ledger: each reference once, balanced or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import ARRAY, BigInteger, Text, bindparam, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.database import PicosType
from app.core.errors import Conflict, InvariantViolation
from app.core.ids import TenantId, TransactionId
from billing.ledger.model import AccountKind, Transaction
from billing.ledger.tables import ledger_account, ledger_entry, ledger_transaction

_Account = tuple[str, str, str]
# A statement for all rows: a batch of usage has a transaction for each tenant.
_INSERT_TRANSACTIONS = text("""
INSERT INTO ledger_transaction (id, kind, ref_type, ref_id, tenant_id, at, entry_count)
SELECT * FROM unnest(:ids, :kinds, :ref_types, :ref_ids, :tenants, CAST(:moments AS timestamptz[]),
  CAST(:counts AS smallint[]))
ON CONFLICT DO NOTHING RETURNING id
""").bindparams(
    *(bindparam(name, type_=ARRAY(Text)) for name in ("ids", "kinds", "ref_types", "ref_ids", "tenants"))
)
_INSERT_ENTRIES = text("""
INSERT INTO ledger_entry (transaction_id, account_id, amount)
SELECT * FROM unnest(:transactions, :accounts, :amounts)
""").bindparams(
    bindparam("transactions", type_=ARRAY(Text)),
    bindparam("accounts", type_=ARRAY(BigInteger)),
    bindparam("amounts", type_=ARRAY(PicosType)),
)


async def post(connection: AsyncConnection, transactions: Sequence[Transaction]) -> dict[str, TransactionId]:
    """Post each transaction whose reference is new; returns the id under which each `ref_id` stands.

    Idempotent by (kind, ref_type, ref_id). Raises Conflict if a reference is known with another tenant
    or other amounts, InvariantViolation if a transaction does not sum to zero.
    """
    for transaction in transactions:
        _assert_balanced(transaction)
    if not transactions:
        return {}
    accounts = await _accounts(connection, transactions)
    fresh = await _insert(connection, transactions)
    entries = [
        (t.id, accounts[t.tenant_id, kind, t.currency], amount)
        for t in transactions
        if t.id in fresh
        for kind, amount in t.entries.items()
    ]
    if entries:
        columns = zip(("transactions", "accounts", "amounts"), zip(*entries, strict=True), strict=True)
        await connection.execute(_INSERT_ENTRIES, {name: list(values) for name, values in columns})
    stands = {t.reference.ref_id: t.id for t in transactions}
    for known in (t for t in transactions if t.id not in fresh):
        stands[known.reference.ref_id] = await _same(connection, known, accounts=accounts)
    return stands


async def open_accounts(
    connection: AsyncConnection, tenant_id: TenantId, *, kinds: Iterable[AccountKind], currency: str
) -> None:
    """Make a tenant's accounts of these kinds, where there are none. May wait for others who make them."""
    await _accounts_of(connection, {(tenant_id, kind.value, currency) for kind in kinds})


def _assert_balanced(transaction: Transaction) -> None:
    amounts = transaction.entries.values()
    if len(amounts) < 2 or sum(amounts) != 0 or not all(amounts):
        raise InvariantViolation(
            "a ledger transaction must sum to zero", reference=transaction.reference.ref_id
        )


async def _accounts(
    connection: AsyncConnection, transactions: Iterable[Transaction]
) -> Mapping[_Account, int]:
    """The ids of all accounts that the transactions touch; made where there are none."""
    wanted = {(t.tenant_id, kind.value, t.currency) for t in transactions for kind in t.entries}
    return await _accounts_of(connection, wanted)


async def _accounts_of(connection: AsyncConnection, accounts: Iterable[_Account]) -> Mapping[_Account, int]:
    wanted = sorted(accounts)
    found = await _find_accounts(connection, wanted)
    if missing := [account for account in wanted if account not in found]:
        rows = [dict(zip(("tenant_id", "kind", "currency"), account, strict=True)) for account in missing]
        await connection.execute(insert(ledger_account).values(rows).on_conflict_do_nothing())
        found = await _find_accounts(connection, wanted)
    return found


async def _find_accounts(connection: AsyncConnection, wanted: Sequence[_Account]) -> dict[_Account, int]:
    account = ledger_account.c
    key = tuple_(account.tenant_id, account.kind, account.currency)
    query = select(account.id, account.tenant_id, account.kind, account.currency).where(key.in_(wanted))
    return {
        (tenant, kind, currency): number for number, tenant, kind, currency in await connection.execute(query)
    }


async def _insert(connection: AsyncConnection, transactions: Sequence[Transaction]) -> set[str]:
    ordered = sorted(transactions, key=lambda t: (t.reference.kind, t.reference.ref_type, t.reference.ref_id))
    columns = {
        "ids": [t.id for t in ordered],
        "kinds": [t.reference.kind for t in ordered],
        "ref_types": [t.reference.ref_type for t in ordered],
        "ref_ids": [t.reference.ref_id for t in ordered],
        "tenants": [t.tenant_id for t in ordered],
        "moments": [t.at for t in ordered],
        "counts": [len(t.entries) for t in ordered],
    }
    return set((await connection.execute(_INSERT_TRANSACTIONS, columns)).scalars())


async def _same(
    connection: AsyncConnection, asked: Transaction, *, accounts: Mapping[_Account, int]
) -> TransactionId:
    """The id of the transaction that already stands for a reference. Raises Conflict if it differs."""
    transaction, reference = ledger_transaction.c, asked.reference
    found = (
        await connection.execute(
            select(transaction.id, transaction.tenant_id).where(
                transaction.kind == reference.kind,
                transaction.ref_type == reference.ref_type,
                transaction.ref_id == reference.ref_id,
            )
        )
    ).one()
    query = select(ledger_entry.c.account_id, ledger_entry.c.amount).where(
        ledger_entry.c.transaction_id == found.id
    )
    standing = {row.account_id: row.amount for row in await connection.execute(query)}
    wanted = {
        accounts[asked.tenant_id, kind, asked.currency]: amount for kind, amount in asked.entries.items()
    }
    if found.tenant_id != asked.tenant_id or standing != wanted:
        raise Conflict("this reference was posted with other amounts", reference=reference.ref_id)
    return TransactionId(found.id)


def usage_entries(cost: int) -> dict[AccountKind, int]:
    """The entries of usage that costs `cost` picos: out of the wallet, into revenue."""
    return {AccountKind.WALLET: -cost, AccountKind.REVENUE: cost}
