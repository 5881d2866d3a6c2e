"""A request that holds of allowances of every kind: each is spent what it counts, whatever became of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from app.core import ids
from app.core.ids import IncarnationId
from billing.journal.model import Admitted, Held, Progress, Reading, Settled, Used
from billing.journal.settler import Settler
from billing.journal.undelivered import undelivered
from billing.metering.model import Usage
from billing.metering.uses import needed_of, used_of
from billing.rating.model import cost
from tests.billing.journal import journals
from tests.billing.journal.shop import RATES, USAGE, Catalogue, Shop, settled

KINDS = ("tokens", "input_tokens", "output_tokens", "requests", "concurrent")
_WINDOWS = {"concurrent": "running"}
_NEW = """
INSERT INTO allowance
  (id, tenant_id, scope_kind, scope_id, what, window_kind, limit_amount, period_start, period_end)
VALUES (:id, :tenant, 'tenant', :tenant, :what, CAST(:window AS text), 1000000,
  CASE WHEN CAST(:window AS text) = 'day' THEN timestamptz '2026-09-21' END,
  CASE WHEN CAST(:window AS text) = 'day' THEN timestamptz '2026-09-22' END)
"""


async def limited(shop: Shop, incarnation_id: IncarnationId) -> Admitted:
    """An admission that holds of the wallet and of an allowance of each kind, all of them lent."""
    admitted = shop.catalogue.admitted()
    bounds = Usage(input=admitted.input_bound, output=admitted.output_bound)
    holds = list(admitted.holds)
    async with shop.owner.begin() as connection:
        for what in KINDS:
            fresh = ids.allowance_id()
            named = {"id": fresh, "tenant": admitted.tenant_id, "what": what}
            await connection.execute(text(_NEW), {**named, "window": _WINDOWS.get(what, "day")})
            lent = "INSERT INTO lease (allowance_id, incarnation_id, granted) VALUES (:id, :to, 5000)"
            await connection.execute(text(lent), {"id": fresh, "to": incarnation_id})
            holds.append(Held(fresh, needed_of(what, bounds, cost_picos=0), what))
    return msgspec.structs.replace(admitted, holds=tuple(holds), task_id=ids.TaskId("tsk_one"))


def ended(admitted: Admitted, usage: Usage = USAGE) -> Settled:
    """Its honest end."""
    price = cost(usage, RATES)
    used = tuple(
        Used(held.allowance_id, held.amount, used_of(held.what, usage, cost_picos=price), held.what)
        for held in admitted.holds
    )
    return settled(admitted, usage, used=used)


async def spent(shop: Shop) -> dict[str, int]:
    rows = await shop.rows("SELECT what, spent FROM allowance WHERE window_kind <> 'balance'")
    return {what: int(amount) for what, amount in rows}


async def look(shop: Shop, folder: Path) -> Settler:
    settler = Settler(shop.engine, folder=folder, clock=shop.clock)
    await settler.look()
    return settler


async def test_each_allowance_is_spent_what_it_counts(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    admitted = await limited(shop, incarnation_id)
    records = [admitted, ended(admitted)]
    writer = await journals.live(tmp_path, incarnation_id, *records, clock=shop.clock)
    settler = await look(shop, tmp_path)
    assert await spent(shop) == {
        "tokens": 990,
        "input_tokens": 900,
        "output_tokens": 90,
        "requests": 1,
        "concurrent": 0,
    }
    settled_of = "SELECT a.what, l.settled FROM lease l JOIN allowance a ON a.id = l.allowance_id"
    taken = {what: int(amount) for what, amount in await shop.rows(settled_of)}
    assert (taken["tokens"], taken["requests"], taken["concurrent"]) == (990, 1, 0)
    [(task_id, holds)] = await shop.rows("SELECT task_id, holds FROM usage_event")
    assert task_id == "tsk_one"
    assert {each["what"]: each["used"] for each in holds} == {
        "picos": str(cost(USAGE, RATES)),
        **{what: str(amount) for what, amount in (await spent(shop)).items()},
    }
    assert await shop.rows("SELECT count(*) FROM parked_record") == [0]
    settler.close()
    await writer.close()


async def test_a_lost_request_was_a_request_and_no_more(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    admitted = await limited(shop, incarnation_id)
    progress = Progress(
        admitted.at_ms + 1, (Reading(admitted.request_id, ids.BackendId("bck_one"), USAGE, 10),)
    )
    data = journals.frames(incarnation_id, [admitted, progress])
    journals.dead(tmp_path, incarnation_id, b"".join(data))
    await look(shop, tmp_path)
    assert await spent(shop) == {**dict.fromkeys(KINDS, 0), "requests": 1}
    assert await shop.outstanding(incarnation_id) == 0
    assert await shop.events(incarnation_id) == {admitted.request_id: ("lost", 0)}


@pytest.mark.parametrize("what", KINDS)
async def test_a_use_that_is_not_what_was_billed_is_parked(shop: Shop, tmp_path: Path, what: str) -> None:
    incarnation_id = await shop.incarnation()
    admitted = await limited(shop, incarnation_id)
    honest = ended(admitted)
    used = tuple(
        msgspec.structs.replace(each, used=each.used + 1) if each.what == what else each
        for each in honest.used
    )
    forged = msgspec.structs.replace(honest, used=used)
    journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, [admitted, forged])))
    await look(shop, tmp_path)
    [reason] = await shop.rows("SELECT reason FROM parked_record")
    assert "is not what was used" in reason
    assert await spent(shop) == dict.fromkeys(KINDS, 0)


async def test_a_hold_that_counts_something_else_than_its_allowance_is_parked(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    admitted = await limited(shop, incarnation_id)
    holds = tuple(
        msgspec.structs.replace(held, what="requests") if held.what == "tokens" else held
        for held in admitted.holds
    )
    forged = msgspec.structs.replace(admitted, holds=holds)
    records = [forged, ended(forged)]
    journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, records)))
    await look(shop, tmp_path)
    [reason] = await shop.rows("SELECT reason FROM parked_record")
    assert "counts tokens by day, not requests" in reason


def test_an_answer_that_the_disk_refused_was_a_request_and_no_more() -> None:
    kinds = ("picos", *KINDS)
    admitted = msgspec.structs.replace(
        Catalogue(ids.tenant_id(), ids.allowance_id()).admitted(),
        holds=tuple(Held(ids.AllowanceId(f"alw_{what}"), 5000, what) for what in kinds),
    )
    late = undelivered(ended(admitted))
    assert {each.what: each.used for each in late.used} == {**dict.fromkeys(kinds, 0), "requests": 1}
