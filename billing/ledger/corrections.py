"""Corrections of usage events: rows of their own, posted to ledger, roll-ups, wallet and allowance at once.

An event never changes. What a correction gives back raises the allowance's limit; what was spent stays what
was spent. It counts in the quarter of an hour in which it was posted, as usage of the source `correction`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import bindparam, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.database import PicosType
from app.core.errors import Conflict, InvariantViolation, Rejected, RejectReason
from app.core.ids import RequestId, TenantId
from app.core.money import format_picos
from billing.ledger import posting
from billing.ledger.model import AccountKind, BilledTokens, Correction, MoveKind, Reference
from billing.ledger.purse import Purse
from billing.ledger.tables import usage_correction
from billing.ledger.wallets import find_wallet_of, lock_wallet
from billing.metering.model import Meter

SOURCE = "correction"
"""What a correction's roll-up has for a usage source: nobody measured it."""

_EVENT = text("""
SELECT e.*, c.* FROM usage_event e CROSS JOIN LATERAL (SELECT coalesce(sum(amount), 0) AS returned,
  coalesce(sum(billed_input), 0) AS more_input, coalesce(sum(billed_input_cached), 0) AS more_input_cached,
  coalesce(sum(billed_input_cache_write), 0) AS more_input_cache_write,
  coalesce(sum(billed_output), 0) AS more_output
  FROM usage_correction WHERE request_id = e.request_id) c
WHERE e.request_id = :request
""")
_ROLL_UP = text("""
INSERT INTO usage_rollup (bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency,
  usage_source, requests, input, input_cached, input_cache_write, output, reasoning,
  billed_input, billed_input_cached, billed_input_cache_write, billed_output, cost)
SELECT date_bin('15 minutes', CAST(:at AS timestamptz), 'epoch'), tenant_id, project_id, key_id, model_id,
  price_version_id, currency, 'correction', 0, 0, 0, 0, 0, 0,
  CAST(:billed_input AS bigint), CAST(:billed_input_cached AS bigint),
  CAST(:billed_input_cache_write AS bigint), CAST(:billed_output AS bigint), -CAST(:amount AS numeric)
FROM usage_event WHERE request_id = :request
ON CONFLICT (bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency, usage_source)
DO UPDATE SET billed_input = usage_rollup.billed_input + EXCLUDED.billed_input,
  billed_input_cached = usage_rollup.billed_input_cached + EXCLUDED.billed_input_cached,
  billed_input_cache_write = usage_rollup.billed_input_cache_write + EXCLUDED.billed_input_cache_write,
  billed_output = usage_rollup.billed_output + EXCLUDED.billed_output,
  cost = usage_rollup.cost + EXCLUDED.cost
""").bindparams(bindparam("amount", type_=PicosType))


class Asked(msgspec.Struct, frozen=True):
    """A correction that is asked for.   amount: picos, > 0 gives back; None: what `tokens` are worth.

    tokens: by how much the billed tokens change; the amount is theirs at the event's own rates then.
    """

    request_id: RequestId
    reason: str
    reference: str
    created_by: str
    amount: int | None = None
    tokens: BilledTokens = BilledTokens()


async def correct(connection: AsyncConnection, asked: Asked, *, now: datetime) -> Correction:
    """The correction of a posted event. The same reference of a tenant again returns the first one.

    Raises Rejected (404) if there is no such event; Conflict if the reference stands for another correction,
    if the event's net cost would fall below zero, or rise above what its billed tokens are worth or what the
    request was held for; if a class would have fewer than no tokens, or more were charged than is available.
    """
    event = await _event(connection, asked.request_id)
    purse_of = await find_wallet_of(connection, event["tenant_id"])
    if purse_of is None:
        raise InvariantViolation("a tenant with usage has a wallet", tenant_id=event["tenant_id"])
    held = await lock_wallet(connection, purse_of.id)
    event = await _event(connection, asked.request_id)  # again: what others corrected meanwhile counts
    amount = _amount(asked, event)
    if (known := await _find(connection, event["tenant_id"], reference=asked.reference)) is not None:
        return _same(known, asked, amount=amount)
    _check(asked, event, amount=amount)
    await _roll_up(connection, asked, amount=amount, at=now)
    kinds = (AccountKind.WALLET, AccountKind.REVENUE)
    await posting.open_accounts(connection, held.tenant_id, kinds=kinds, currency=held.currency)
    purse = await Purse.hold(connection, held, at=now)
    if amount < 0 and -amount > purse.available:
        raise Conflict(
            "the charge is more than the wallet has available",
            charge=format_picos(-amount),
            available=format_picos(purse.available),
        )
    made = await _post(purse, asked, amount=amount)
    await purse.release()
    return made


async def list_corrections(
    connection: AsyncConnection,
    *,
    tenant_id: TenantId | None,
    request_id: RequestId | None = None,
    before: str | None = None,
    limit: int,
) -> list[Correction]:
    """Corrections, newest first, older than a given one.   tenant_id: None is all tenants."""
    known = usage_correction.c
    query = select(usage_correction).order_by(known.id.desc()).limit(limit)
    if tenant_id is not None:
        query = query.where(known.tenant_id == tenant_id)
    if request_id is not None:
        query = query.where(known.request_id == request_id)
    if before is not None:
        query = query.where(known.id < before)
    return [Correction(**row._mapping) for row in await connection.execute(query)]


async def _event(connection: AsyncConnection, request_id: RequestId) -> dict[str, Any]:
    found = (await connection.execute(_EVENT, {"request": request_id})).mappings().one_or_none()
    if found is None:
        raise Rejected(
            RejectReason.NOT_FOUND,
            f"There is no settled request {request_id[:100]!r}.",
            status=404,
            id=request_id[:100],
        )
    return dict(found)


def _amount(asked: Asked, event: Mapping[str, Any]) -> int:
    """The amount asked for, or what its tokens are worth. Raises Conflict if it is neither."""
    tokens = {meter: getattr(asked.tokens, f"billed_{meter.value}") for meter in Meter}
    worth: int = -sum(count * int(event["rates"][meter.value]) for meter, count in tokens.items())
    if not any(tokens.values()):
        if not asked.amount:
            raise Conflict("a correction gives back or charges something")
        return int(asked.amount)
    if asked.amount not in (None, worth) or not worth:
        raise Conflict(
            "the amount of a correction by tokens is theirs at the event's rates", worth=format_picos(worth)
        )
    return worth


def _check(asked: Asked, event: Mapping[str, Any], *, amount: int) -> None:
    """Nothing, if the event may be corrected so. Raises Conflict."""
    cost, net = int(event["cost"]), int(event["cost"] - event["returned"]) - amount
    if not 0 <= net <= max(int(event["hold"]), cost):
        raise Conflict(
            "corrections leave a request's cost between nothing and what was held for it",
            cost=format_picos(cost),
            net=format_picos(net),
            held=format_picos(int(event["hold"])),
        )
    worth = 0
    for meter in Meter:
        more = int(event[f"more_{meter.value}"]) + getattr(asked.tokens, f"billed_{meter.value}")
        tokens = int(event[f"billed_{meter.value}"]) + more
        if tokens < 0:
            raise Conflict("corrections leave no fewer than no tokens", meter=meter.value)
        worth += tokens * int(event["rates"][meter.value])
    if net > worth:
        raise Conflict(
            "what is charged goes by tokens: correct the request's `tokens`, not its `amount`",
            net=format_picos(net),
            worth=format_picos(worth),
        )


async def _roll_up(connection: AsyncConnection, asked: Asked, *, amount: int, at: datetime) -> None:
    tokens = msgspec.structs.asdict(asked.tokens)
    values = {"request": asked.request_id, "at": at, "amount": amount, **tokens}
    await connection.execute(_ROLL_UP, values)


async def _post(purse: Purse, asked: Asked, *, amount: int) -> Correction:
    correction_id = ids.correction_id()
    entries = {AccountKind.WALLET: amount, AccountKind.REVENUE: -amount}
    transaction_id = await purse.post(Reference("correction", "usage_event", correction_id), entries)
    made = Correction(
        id=correction_id,
        request_id=asked.request_id,
        tenant_id=purse.story.wallet.tenant_id,
        amount=amount,
        currency=purse.story.wallet.currency,
        **msgspec.structs.asdict(asked.tokens),
        reason=asked.reason,
        reference=asked.reference,
        created_by=asked.created_by,
        at=purse.at,
        transaction_id=transaction_id,
    )
    await purse.connection.execute(insert(usage_correction).values(msgspec.structs.asdict(made)))
    await purse.move(
        MoveKind.RETURNED if amount > 0 else MoveKind.CHARGED,
        amount,
        correction_id=correction_id,
        transaction_id=transaction_id,
    )
    return made


async def _find(connection: AsyncConnection, tenant_id: TenantId, *, reference: str) -> Correction | None:
    known = usage_correction.c
    query = select(usage_correction).where(known.tenant_id == tenant_id, known.reference == reference)
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else Correction(**row._mapping)


def _same(known: Correction, asked: Asked, *, amount: int) -> Correction:
    """The correction that stands for a reference. Raises Conflict if it isn't the one asked for."""
    tokens = BilledTokens(**{name: getattr(known, name) for name in BilledTokens.__struct_fields__})
    if (known.request_id, known.amount, tokens) != (asked.request_id, amount, asked.tokens):
        raise Conflict("this reference stands for another correction", reference=asked.reference)
    return known
