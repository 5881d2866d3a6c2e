"""The authority as settler and control use it: in their transaction, never committing.

Each call locks incarnation, then allowances by id, then leases. A transaction makes at most one of these
calls that lock, as its last step, or two transactions may wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from sqlalchemy import ARRAY, Boolean, Text, bindparam, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.database import PicosType
from app.core.errors import SteelyardError
from app.core.ids import AllowanceId, IncarnationId, TenantId
from billing.quota.model import AllowanceStatus
from billing.quota.tables import allowance, incarnation, lease

ScopeKind = Literal["tenant", "project", "key", "task"]
What = Literal["picos", "tokens", "requests", "concurrent"]
WindowKind = Literal["balance"]
"""What `create_allowance` makes: wallets and budgets of tasks. All else follows from plans and overrides."""


class AllowanceUnknown(SteelyardError):
    """There is no allowance of this id."""

    code = "not_found"
    status = 404


_POST = text("SELECT * FROM quota_post(:incarnation, :ids, :taken, :used)").bindparams(
    bindparam("incarnation", type_=Text),
    bindparam("ids", type_=ARRAY(Text)),
    bindparam("taken", type_=ARRAY(PicosType)),
    bindparam("used", type_=ARRAY(PicosType)),
)
_STATUS = text("""
SELECT a.limit_amount, a.spent, o.outstanding, CASE WHEN a.window_kind = 'minute'
  THEN div((SELECT r_level FROM quota_level(a.id, clock_timestamp())), 1000000)
  ELSE a.limit_amount - a.spent - o.outstanding END AS available, a.unleased
FROM allowance a CROSS JOIN LATERAL (
  SELECT coalesce(sum(l.granted - l.settled - l.returned), 0) AS outstanding FROM lease l
  WHERE l.allowance_id = a.id AND l.granted - l.settled - l.returned > 0) AS o
WHERE a.id = :id
""")
_CLOSE = text("SELECT quota_close(:incarnation, :ids, :parked, :released)").bindparams(
    bindparam("incarnation", type_=Text),
    bindparam("ids", type_=ARRAY(Text)),
    bindparam("parked", type_=ARRAY(PicosType)),
    bindparam("released", type_=Boolean),
)


async def create_allowance(
    connection: AsyncConnection,
    *,
    tenant_id: TenantId,
    scope_kind: ScopeKind,
    scope_id: str,
    what: What,
    window_kind: WindowKind,
    limit: int,
) -> AllowanceId:
    """The id of a new allowance of which nothing is spent. One per scope, kind and window."""
    row_id = ids.allowance_id()
    await connection.execute(
        insert(allowance).values(
            id=row_id,
            tenant_id=tenant_id,
            scope_kind=scope_kind,
            scope_id=scope_id,
            what=what,
            window_kind=window_kind,
            limit_amount=limit,
        )
    )
    return row_id


async def change_limit(connection: AsyncConnection, allowance_id: AllowanceId, *, by: int) -> None:
    """Raise or lower a limit. Waiting askers try anew; below what is out nothing is granted."""
    changed = await connection.execute(
        update(allowance)
        .where(allowance.c.id == allowance_id)
        .values(limit_amount=allowance.c.limit_amount + bindparam("by", by, PicosType))
    )
    if not changed.rowcount:
        raise AllowanceUnknown("no such allowance", allowance_id=allowance_id)
    await connection.execute(select(func.pg_notify("steelyard_changes", f"allowance:{allowance_id}")))


async def hold_still(connection: AsyncConnection, allowance_id: AllowanceId) -> AllowanceStatus:
    """Where an allowance stands, locked: nothing is granted, spent or returned of it before the commit.

    May be followed by `change_limit` and `recall` of the same one. Raises AllowanceUnknown.
    """
    await connection.execute(select(allowance.c.id).where(allowance.c.id == allowance_id).with_for_update())
    return await status(connection, allowance_id)


async def recall(connection: AsyncConnection, allowance_id: AllowanceId) -> None:
    """Ask all processes to give back what they have of it and do not use."""
    until = func.clock_timestamp() + text("interval '1 second'")
    await connection.execute(
        update(allowance).where(allowance.c.id == allowance_id).values(recall_until=until)
    )
    await connection.execute(select(func.pg_notify("steelyard_changes", f"allowance:{allowance_id}")))


async def post(
    connection: AsyncConnection,
    incarnation_id: IncarnationId,
    uses: Sequence[tuple[AllowanceId, int, int]],
) -> dict[AllowanceId, int]:
    """Spend what new events used; returns what no lease covered, by allowance.

    uses: (allowance, taken, used) of each new event, all of one incarnation. taken: what its record takes
    of the lease, min(held, used) as recorded; used: what is spent. They differ by an overrun (unleased, as
    is use after an operator's release), or where a parked record is repaired to less (the rest is free).
    """
    sums: dict[AllowanceId, list[int]] = {}
    for allowance_id, taken, used in uses:
        if taken < 0 or used < 0:
            raise ValueError("amounts taken and used are never negative")
        row = sums.setdefault(allowance_id, [0, 0])
        row[0] += taken
        row[1] += used
    if not sums:
        return {}
    taken_all, used_all = zip(*sums.values(), strict=True)
    rows = await connection.execute(
        _POST,
        {
            "incarnation": incarnation_id,
            "ids": list(sums),
            "taken": list(taken_all),
            "used": list(used_all),
        },
    )
    return {AllowanceId(row.allowance_id): int(row.unleased) for row in rows}


async def lock(connection: AsyncConnection, incarnation_id: IncarnationId) -> None:
    """Lock an incarnation, so that what is read next stays true until it is closed or released.

    Nothing is posted of it meanwhile. The first of the locks that `close` takes.
    """
    await connection.execute(
        select(incarnation.c.id).where(incarnation.c.id == incarnation_id).with_for_update()
    )


async def close(
    connection: AsyncConnection, incarnation_id: IncarnationId, *, parked: Mapping[AllowanceId, int]
) -> None:
    """End an incarnation that is proven dead and posted; its leases return but for what is parked.

    parked: what its parked records still take, by allowance: the sum of min(held, used) as recorded, read
    under `lock`. A parked record is resolved by a post of (that amount, what it used). Idempotent.
    """
    await _close(connection, incarnation_id, parked=parked, released=False)


async def release(
    connection: AsyncConnection, incarnation_id: IncarnationId, *, parked: Mapping[AllowanceId, int]
) -> None:
    """As `close`, on an operator's word that its machine is gone for good.

    Costs at most the outstanding amount that `outstanding` shows, if the machine comes back and posts.
    """
    await _close(connection, incarnation_id, parked=parked, released=True)


async def status(connection: AsyncConnection, allowance_id: AllowanceId) -> AllowanceStatus:
    """Where an allowance stands now. Raises AllowanceUnknown."""
    row = (await connection.execute(_STATUS, {"id": allowance_id})).one_or_none()
    if row is None:
        raise AllowanceUnknown("no such allowance", allowance_id=allowance_id)
    return AllowanceStatus(*(int(amount) for amount in row))


async def outstanding(connection: AsyncConnection, incarnation_id: IncarnationId) -> dict[AllowanceId, int]:
    """What an incarnation still has of each allowance: the most that releasing it may cost.

    Not of rates, whose leases end by themselves.
    """
    amount = lease.c.granted - lease.c.settled - lease.c.returned
    rows = await connection.execute(
        select(lease.c.allowance_id, amount.label("amount"))
        .where(lease.c.incarnation_id == incarnation_id, amount > 0, lease.c.epoch == 0)
        .order_by(lease.c.allowance_id)
    )
    return {AllowanceId(row.allowance_id): int(row.amount) for row in rows}


async def uncovered(connection: AsyncConnection) -> int:
    """Use that a lease should have covered and did not, of incarnations no operator released: must stay 0."""
    total = await connection.scalar(
        select(func.coalesce(func.sum(lease.c.uncovered), 0))
        .join(incarnation, incarnation.c.id == lease.c.incarnation_id)
        .where(~incarnation.c.released, lease.c.uncovered > 0)
    )
    return int(total or 0)


async def _close(
    connection: AsyncConnection,
    incarnation_id: IncarnationId,
    *,
    parked: Mapping[AllowanceId, int],
    released: bool,
) -> None:
    await connection.execute(
        _CLOSE,
        {
            "incarnation": incarnation_id,
            "ids": list(parked),
            "parked": list(parked.values()),
            "released": released,
        },
    )
